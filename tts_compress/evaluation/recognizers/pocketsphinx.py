"""PocketSphinx: the recognizer whose wheel has its models inside, so it needs no network."""

from functools import partial
from importlib.metadata import version

import numpy as np
from pocketsphinx import Decoder

from tts_compress.audio import Samples
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.recognizers import Recognizer
from tts_compress.models.speakers import primary_language

_SAMPLE_RATE = 16_000
"""Rate of the stock acoustic model's training data, Hz."""

_PHONES = 2_000
"""Most models of phones that are followed in a frame of 10 ms. The decoder's own 30,000 take 1.6
times as long, for the same words in 95 of 100 utterances of the demo voice, and no fewer errors."""

_SILENCE_S = 0.2
"""Put before and after: the decoder expects an utterance to begin and end in silence."""


def open_recognizer(model: str, language: str) -> Recognizer:
    """Open the stock US English acoustic model, trigram language model and dictionary."""
    if model:
        raise EvaluationError(
            f"'pocketsphinx' has its stock model alone; leave ':{model}' out, or choose another "
            "recognizer"
        )
    if primary_language(language) != "en":
        raise EvaluationError(
            f"'pocketsphinx' knows English, and the suite is in {language!r}; choose a recognizer "
            "that knows it, such as --recognizer whisper"
        )
    # The decoder adapts its cepstral mean from one utterance to the next ("live"), so that a
    # hypothesis depends on the utterances before. "batch" takes the mean of the utterance at hand,
    # provided the utterance is given whole.
    decoder = Decoder(samprate=_SAMPLE_RATE, cmn="batch", maxhmmpf=_PHONES, loglevel="FATAL")
    return Recognizer(
        describe=lambda: (
            f"PocketSphinx {version('pocketsphinx')}, stock en-us acoustic model, stock en-us "
            f"trigram model, {_PHONES} phones a frame"
        ),
        listen=partial(_listen, decoder),
    )


def _listen(decoder: Decoder, samples: Samples) -> str:
    # The front end keeps something of the last utterance, enough to change a word now and then:
    # two of forty clips were transcribed differently when played in reverse order.
    decoder.reinit_feat()
    decoder.start_utt()
    padded = np.pad(samples, round(_SILENCE_S * _SAMPLE_RATE))
    pcm = np.clip(np.round(padded * 32767.0), -32768, 32767).astype("<i2").tobytes()
    decoder.process_raw(pcm, no_search=False, full_utt=True)
    decoder.end_utt()
    hypothesis = decoder.hyp()
    return "" if hypothesis is None else str(hypothesis.hypstr)
