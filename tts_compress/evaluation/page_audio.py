"""Audio for inside pages: Opus of a report's utterances, FLAC of a blind listening test.

A report has the utterances that a reader wants to hear first. A test has pairs of one level, and
damaged copies that all must hear; it is lossless (16 bits, which every browser plays): Opus adds
more to both voices than 8-bit weights do to one.
"""

import hashlib
import io
import json
import math
import warnings
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from tts_compress.audio import Audio, finite_samples, read_wav
from tts_compress.errors import TTSCompressWarning
from tts_compress.evaluation.listening import ListeningTest, SoundPair
from tts_compress.evaluation.metric import Pair
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.pairs import UtterancePair
from tts_compress.evaluation.result import Evaluation, Utterance

LONGEST_S = 540.0
"""Audio in one page, both models together: 5.3 MB in base64."""

_LEVEL = 0.8
"""56 kbit/s for libsndfile. Below, libopus codes speech in another way, which takes twice the time
and is further from the original: log-mel distance 1.1 instead of 0.9 dB at 16 kHz."""

_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
"""Those of Opus, Hz."""

_ROLES = ("reference", "candidate")
_SERIAL = (1).to_bytes(4, "little")
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
"""Each byte with its bits in reverse: Ogg's checksum is that of zlib, highest bit first, without
its inversions."""

_MOST_PAIRS = 20
_CATCHES = 4
_MOST_PAIR_S = 20.0
"""Nobody remembers longer sounds well enough to compare them; and the page must not grow large."""

_LOUDNESS = 0.05
"""Level of each sound, 26 dB below full scale, as in tests by ITU-T P.800."""

_HISS = 0.25
"""Level of the noise in a damaged copy, as a share of the speech's: 12 dB below it."""


def encode_pairs(
    evaluation: Evaluation,
    pairs: Sequence[UtterancePair],
    audios: Mapping[str, Path],
    options: EvaluationOptions,
) -> dict[tuple[int, int], Pair[bytes]]:
    """Return Ogg files by index and seed, as many as fit into a page; none where Opus is missing.

    Args:
        evaluation: The finished evaluation, by which utterances are chosen.
        pairs: The hashes of each utterance's audio.
        audios: WAV files by hash.
        options: Gives the number of threads, and is told the progress.
    """
    import soundfile

    if "OPUS" not in soundfile.available_subtypes("OGG"):
        warnings.warn(
            f"libsndfile {soundfile.__libsndfile_version__} cannot write Opus: the page has no "
            "audio; install soundfile from its wheel, or keep WAV files with --wav",
            TTSCompressWarning,
            stacklevel=2,
        )
        return {}
    chosen = {(utterance.index, utterance.seed) for utterance in choose_utterances(evaluation)}
    spoken = {key: p.audio for p in pairs if (key := (p.index, p.seed)) in chosen}
    paths = [audios[hashes[role]] for hashes in spoken.values() for role in _ROLES]
    streams = []
    with ThreadPoolExecutor(options.jobs) as threads:
        for stream in threads.map(lambda path: encode_opus(read_wav(path)), paths):
            streams.append(stream)
            options.progress.advance("encode audio", len(streams), len(paths))
    return {
        key: Pair(reference=streams[2 * number], candidate=streams[2 * number + 1])
        for number, key in enumerate(spoken)
    }


def choose_utterances(evaluation: Evaluation) -> list[Utterance]:
    """Return the utterances whose audio goes into the page, the most important first.

    First those that the tables name as damaged, then those with the most added word errors, then
    those that are farthest from the reference.
    """
    findings = evaluation.damage.findings.values() if evaluation.damage else ()
    named = {(finding.index, finding.seed) for finding in findings if finding.utterances}

    def importance(utterance: Utterance) -> tuple[bool, int, float]:
        is_named = (utterance.index, utterance.seed) in named
        distance = utterance.log_mel_distance_db
        return is_named, utterance.added_errors, distance if math.isfinite(distance) else math.inf

    chosen, total_s = [], 0.0
    for utterance in sorted(evaluation.utterances, key=importance, reverse=True):
        both_s = utterance.reference.seconds + utterance.candidate.seconds
        if total_s + both_s <= LONGEST_S:
            chosen.append(utterance)
            total_s += both_s
    return chosen


def encode_opus(audio: Audio) -> bytes:
    """Return audio as Opus in Ogg, as loud as it is; the same samples give the same bytes.

    Empty audio gives no bytes. Other rates than those of Opus become the next higher one.
    """
    import soundfile

    if not len(audio.samples):
        return b""
    rate = next((rate for rate in _RATES if rate >= audio.sample_rate), _RATES[-1])
    samples = np.clip(finite_samples(audio, rate), -1.0, 1.0)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="OGG", subtype="OPUS", compression_level=_LEVEL)
    return _renumber(buffer.getvalue())


def _renumber(stream: bytes) -> bytes:
    """Return an Ogg stream (RFC 3533) with our serial number in place of a random one."""
    pages = bytearray(stream)
    start = 0
    while start < len(pages):
        segments = pages[start + 26]
        end = start + 27 + segments + sum(pages[start + 27 : start + 27 + segments])
        pages[start + 14 : start + 18] = _SERIAL
        pages[start + 22 : start + 26] = bytes(4)  # the checksum counts itself as zero
        mirrored = zlib.crc32(pages[start:end].translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
        pages[start + 22 : start + 26] = mirrored.to_bytes(4, "big").translate(_MIRRORED)
        start = end
    return bytes(pages)


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
        pair for pair in different if 0 < min(_lengths(pair)) <= max(_lengths(pair)) < _MOST_PAIR_S
    ]
    if not fit:
        warnings.warn(
            f"no listening test: {len(asked) - len(different)} of {len(asked)} pairs are identical "
            f"sample by sample, others empty or longer than {_MOST_PAIR_S:g} s",
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
        both = _encode_flac(before), _encode_flac(add_hiss(before) if catch else after)
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
    return replace(audio, samples=samples * np.float32(_LOUDNESS / level) if level else samples)


def add_hiss(audio: Audio) -> Audio:
    """Return the audio with white noise that nobody can miss; the same audio gives the same."""
    noise = np.random.default_rng(len(audio.samples)).standard_normal(len(audio.samples))
    samples = audio.samples + _HISS * _LOUDNESS * noise
    return replace(audio, samples=samples.astype(np.float32))


def _encode_flac(audio: Audio) -> str:
    """Return FLAC in base64; libsndfile clips what is beyond full scale."""
    import soundfile

    content = io.BytesIO()
    soundfile.write(content, audio.samples, audio.sample_rate, format="FLAC", subtype="PCM_16")
    return b64encode(content.getvalue()).decode()
