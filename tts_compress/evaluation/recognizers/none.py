"""Nobody: for texts whose words nobody knows, such as ids, and for sound alone."""

from math import inf

from tts_compress.evaluation.recognizers import Recognizer


def open_recognizer(model: str, language: str) -> Recognizer:
    """Return nobody, whatever is asked for, so that every gate on words fails and others count."""
    del model, language
    return Recognizer(describe=lambda: "none", listen=lambda _: "", shortest_s=inf)
