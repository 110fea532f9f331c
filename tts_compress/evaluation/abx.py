"""The audio of a blind listening test: pairs of one level, and damaged copies that all must hear.

It is lossless (FLAC of 16 bits, which every browser plays): Opus, which the report's page has, adds
more to both voices than 8-bit weights do to one.
"""

import hashlib
import io
import json
import warnings
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tts_compress.audio import Audio, read_wav
from tts_compress.errors import TTSCompressWarning
from tts_compress.evaluation.listening import ListeningTest, SoundPair
from tts_compress.evaluation.pairs import UtterancePair
from tts_compress.evaluation.samples import finite_samples

_MOST_PAIRS = 20
_CATCHES = 4
_LONGEST_S = 20.0
"""Nobody remembers longer sounds well enough to compare them; and the page must not grow large."""

_LEVEL = 0.05
"""Level of each sound, 26 dB below full scale, as in tests by ITU-T P.800."""

_HISS = 0.25
"""Level of the noise in a damaged copy, as a share of the speech's: 12 dB below it."""


def make_test(
    origin: Sequence[str], pairs: Sequence[UtterancePair], audios: Mapping[str, Path]
) -> ListeningTest | None:
    """Return a test of up to 20 pairs from the shortest to the longest, and four damaged copies.

    None, and a warning, where no pair can be compared.

    Args:
        origin: Hashes of the models and of the suite.
        pairs: What was spoken. The other seeds of a text are heard where texts are few.
        audios: WAV files by hash.
    """
    texts = list({pair.index: pair for pair in reversed(pairs)}.values())
    asked = texts if len(texts) >= _MOST_PAIRS else pairs
    different = [pair for pair in asked if len(set(_hashes(pair))) > 1]
    fit = [
        pair for pair in different if 0 < min(_lengths(pair)) <= max(_lengths(pair)) < _LONGEST_S
    ]
    if not fit:
        warnings.warn(
            f"no listening test: {len(asked) - len(different)} of {len(asked)} pairs are identical "
            f"sample by sample, others empty or longer than {_LONGEST_S:g} s",
            TTSCompressWarning,
            stacklevel=2,
        )
        return None
    fit.sort(key=_lengths)
    chosen = [fit[round(n)] for n in np.linspace(0, len(fit) - 1, min(len(fit), _MOST_PAIRS))]
    caught = [chosen[n * len(chosen) // _CATCHES] for n in range(_CATCHES)]
    sounds = []
    for pair, catch in (*((pair, False) for pair in chosen), *((pair, True) for pair in caught)):
        before, after = (at_level(read_wav(audios[key])) for key in _hashes(pair))
        both = _encode(before), _encode(add_hiss(before) if catch else after)
        sounds.append(SoundPair(index=pair.index, seed=pair.seed, catch=catch, sounds=both))
    content = json.dumps([*origin, *map(_hashes, chosen)])
    return ListeningTest(
        test=hashlib.sha256(content.encode()).hexdigest()[:16],
        identical=len(asked) - len(different),
        pairs=tuple(sounds),
    )


def _hashes(pair: UtterancePair) -> tuple[str, str]:
    return pair.audio["reference"], pair.audio["candidate"]


def _lengths(pair: UtterancePair) -> tuple[float, float]:
    return pair.seconds["reference"], pair.seconds["candidate"]


def at_level(audio: Audio) -> Audio:
    """Return the audio 26 dB below full scale; silence stays silent.

    The level is of blocks of 0.4 s that are less than 10 dB below the mean of all, as loudness by
    ITU-R BS.1770 is gated, without its weighting of frequencies: pauses do not count.
    """
    samples = finite_samples(audio, audio.sample_rate)
    block = round(0.4 * audio.sample_rate)
    power = np.square(np.pad(samples, (0, max(0, block - len(samples)))), dtype=np.float64)
    blocks = np.lib.stride_tricks.sliding_window_view(power, block)[:: block // 4].mean(axis=1)
    level = np.sqrt(blocks[blocks >= 0.1 * blocks.mean()].mean())
    return replace(audio, samples=samples * np.float32(_LEVEL / level) if level else samples)


def add_hiss(audio: Audio) -> Audio:
    """Return the audio with white noise that nobody can miss; the same audio gives the same."""
    noise = np.random.default_rng(len(audio.samples)).standard_normal(len(audio.samples))
    samples = audio.samples + _HISS * _LEVEL * noise
    return replace(audio, samples=samples.astype(np.float32))


def _encode(audio: Audio) -> str:
    """Return FLAC in base64; libsndfile clips what is beyond full scale."""
    import soundfile

    content = io.BytesIO()
    soundfile.write(content, audio.samples, audio.sample_rate, format="FLAC", subtype="PCM_16")
    return b64encode(content.getvalue()).decode()
