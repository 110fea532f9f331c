"""Moonshine, by moonshine-voice, whose wheel holds a trained model for English.

An encoder and decoder network of 27 million weights that reads the waveform (Jeffries et al., 2024,
arXiv:2410.15608), in INT8. Nothing is downloaded.
"""

from functools import partial
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

from tts_compress.audio import Samples
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.recognizers import (
    Recognizer,
    check_language,
    identify,
    model_files,
    opening,
)

EXTRA = "moonshine"

_DEFAULT = "tiny-en"
_SAMPLE_RATE = 16_000


def open_recognizer(model: str, language: str) -> Recognizer:
    """Open the model in the wheel, or a folder of another one, such as `base-es`.

    Args:
        model: Empty or `tiny-en` for the model in the wheel. Otherwise a folder that
            `python -m moonshine_voice.download` filled; its name says architecture and language.
        language: The language of the texts.
    """
    from moonshine_voice import Transcriber, get_model_path, string_to_model_arch

    folder = Path(model).expanduser().resolve()
    if model in {"", _DEFAULT}:
        folder = get_model_path(_DEFAULT)
    elif not (folder / "tokenizer.bin").is_file():
        raise EvaluationError(
            f"no Moonshine model in {model!r}; give a folder that `python -m "
            "moonshine_voice.download` filled, or none for the English model in the package"
        )
    # The library keeps some models in `NAME/quantized`.
    name = folder.parent.name if folder.name == "quantized" else folder.name
    architecture, _, spoken = name.rpartition("-")
    spec = f"moonshine:{model}" if model else "moonshine"
    check_language(spec, (spoken,), language)
    with opening("moonshine", model or _DEFAULT):
        # Behind the library's detector of speech; it computes on one thread.
        opened = Transcriber(str(folder), string_to_model_arch(architecture))
    return Recognizer(
        describe=lambda: (
            f"moonshine-voice {version('moonshine-voice')}, model {name} "
            f"({identify(model_files(folder))}), greedy"
        ),
        listen=partial(_listen, opened),
    )


def _listen(model: Any, samples: Samples) -> str:
    # The detector of speech keeps its state from one sound to the next, save in a new stream.
    with model.create_stream(update_interval=inf) as stream:
        stream.start()
        stream.add_audio(samples.tolist(), _SAMPLE_RATE)
        transcript = stream.update_transcription(model.MOONSHINE_FLAG_FORCE_UPDATE)
    return " ".join(line.text.strip() for line in transcript.lines)
