"""Measurements of every clip: distances to audio, predicted opinions, words."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.clips import Clip
from benchmarks.report import render
from benchmarks.vocoder.contestants import CONTESTANTS, FP32, NAIVE, OURS, RECORDING
from tts_compress.audio import Audio, audio_sha256, read_wav
from tts_compress.environment import describe_environment, installed_version
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.formatting import interval, signed
from tts_compress.evaluation.intervals import paired_interval
from tts_compress.evaluation.metric import find_measures
from tts_compress.evaluation.metrics.error_rates import count_edits
from tts_compress.evaluation.normalizers import NORMALIZERS
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.store import Analyzer, Store, analyze, find_analyzer, find_recognizer
from tts_compress.numerics.spectra import compare_warped, log_mel_distance, mu_law, spectrum


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One number of each clip."""

    name: str
    label: str
    better: Literal["lower", "higher"]
    share: bool = False
    """It is one of words, shown in per cent."""


QUANTITIES = (
    Quantity(name="distortion_db", label="distortion, dB", better="lower"),
    Quantity(name="log_mel_db", label="log-mel distance to the recording, dB", better="lower"),
    Quantity(name="dnsmos_overall", label="DNSMOS, overall", better="higher"),
    Quantity(name="dnsmos_p808", label="DNSMOS P.808", better="higher"),
    Quantity(name="plcmos", label="PLCMOS", better="higher"),
    Quantity(name="word_errors", label="word errors, %", better="lower", share=True),
)

_OPINIONS = ("dnsmos_overall", "dnsmos_signal", "dnsmos_background", "dnsmos_p808", "plcmos")

Values = Mapping[str, npt.NDArray[np.float64]]
"""Each quantity of one contestant by clip; word errors are counts, by sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A mean difference over clips, and its 95 % interval over resampled clips."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """All values, and the recognizer of the words."""

    values: Mapping[str, Values]
    words: npt.NDArray[np.int64]
    coded_db: float
    """Distortion of FP32's audio by 8-bit mu-law, mean over clips."""

    recognizer: str

    def mean(self, contestant: str, quantity: Quantity) -> float:
        """Return the mean over clips."""
        row = self.values[contestant][quantity.name]
        return float(row.sum() / self._sizes(quantity, row).sum())

    def change(self, before: str, after: str, quantity: Quantity) -> Change:
        """Return the difference of two contestants."""
        differences = self.values[after][quantity.name] - self.values[before][quantity.name]
        sizes = self._sizes(quantity, differences)
        low, high = paired_interval(differences, sizes)
        return Change(mean=float(differences.sum() / sizes.sum()), low=low, high=high)

    def _sizes(self, quantity: Quantity, row: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        return self.words if quantity.share else np.ones(len(row), np.int64)


def judge(
    files: Mapping[str, Sequence[Path]],
    clips: Sequence[Clip],
    sentences: Sequence[Clip],
    recognizer: str,
    store: Store,
    options: EvaluationOptions,
) -> Judged:
    """Measure the sound of clips, and the words of sentences, whose files are last."""
    count = len(clips)
    sound = {name: own[:count] for name, own in files.items()}
    opinions = _analyze(sound, _opinion(options), store, options)
    listener = find_recognizer(recognizer, "en-us", options)
    heard = _analyze({name: own[count:] for name, own in files.items()}, listener, store, options)
    targets = [spectrum(clip.recording) for clip in clips]
    values: dict[str, dict[str, npt.NDArray[np.float64]]] = {}
    for done, (name, paths) in enumerate(sound.items()):
        options.progress.advance("compare", done, len(sound))
        own = [read_wav(path) for path in paths]
        pairs = zip(clips, own, strict=True)
        values[name] = {
            "distortion_db": _distances(own, targets),
            "log_mel_db": np.array([log_mel_distance(c.recording, audio) for c, audio in pairs]),
            **{score: np.array([row[score] for row in opinions[name]]) for score in _OPINIONS},
            "word_errors": _word_errors(sentences, heard[name]),
        }
    options.progress.advance("compare", len(sound), len(sound))
    coded = _distances([mu_law(read_wav(path)) for path in sound[FP32]], targets)
    return Judged(
        values=values,
        words=np.array([len(sentence.transcript.split()) for sentence in sentences]),
        coded_db=float(np.mean(coded - values[FP32]["distortion_db"])),
        recognizer=listener.description,
    )


def _analyze(
    files: Mapping[str, Sequence[Path]],
    analyzer: Analyzer,
    store: Store,
    options: EvaluationOptions,
) -> dict[str, list[Any]]:
    keys = {name: [audio_sha256(read_wav(path)) for path in own] for name, own in files.items()}
    by_key = {
        key: path for name in files for key, path in zip(keys[name], files[name], strict=True)
    }
    results = analyze(store, analyzer, by_key.items(), options, total=len(by_key))
    return {name: [results[key] for key in own] for name, own in keys.items()}


def _opinion(options: EvaluationOptions) -> Analyzer:
    analyzer = find_analyzer(find_measures()["opinion"], options)
    if analyzer is None:
        raise EvaluationError("no networks predict opinions: pip install 'tts-compress[listen]'")
    return analyzer


def _distances(
    audios: Sequence[Audio], targets: Sequence[npt.NDArray[np.float64]]
) -> npt.NDArray[np.float64]:
    """Return the distances from the recordings' spectra that distortion is made of, dB."""
    pairs = zip(audios, targets, strict=True)
    return np.array([compare_warped(spectrum(a), target).distance_db for a, target in pairs])


def _word_errors(sentences: Sequence[Clip], hypotheses: Sequence[str]) -> npt.NDArray[np.float64]:
    normalize = NORMALIZERS["en-v2"]
    pairs = zip(sentences, hypotheses, strict=True)
    edits = [count_edits(clip.transcript, normalize(heard), "word") for clip, heard in pairs]
    return np.array([float(edit.errors) for edit in edits])


_DECIDING = ("distortion_db", "log_mel_db", "dnsmos_overall")

Speed = Mapping[str, float]


def order_is_shown(judged: Judged, quantity: Quantity, stock: str = NAIVE) -> bool:
    """Return True if FP32 is better than ours and ours better than stock, whatever the clips.

    That is: no interval of the differences holds zero, and those from FP32 do not touch.
    """
    ours, other, step = (
        _harm(judged.change(before, after, quantity), quantity)
        for before, after in ((FP32, OURS), (FP32, stock), (OURS, stock))
    )
    return ours[0] > 0 and step[0] > 0 and ours[1] < other[0]


def _harm(change: Change, quantity: Quantity) -> tuple[float, float]:
    if quantity.better == "lower":
        return change.low, change.high
    return -change.high, -change.low


def holds(judged: Judged) -> bool:
    """Return True if the order is shown in each quantity that decides."""
    return all(order_is_shown(judged, q) for q in QUANTITIES if q.name in _DECIDING)


def document(judged: Judged, clips: Sequence[Clip], speed: Speed, ran: str) -> dict[str, object]:
    """Return everything as plain data."""
    return {
        "command": ran,
        "environment": describe_environment(),
        "speechmos": installed_version("speechmos"),
        "recognizer": judged.recognizer,
        "clips": [clip.name for clip in clips],
        "words": judged.words.tolist(),
        "mu_law_distortion_db": judged.coded_db,
        "speed": dict(speed),
        "contestants": {
            name: {
                "values": {quantity: row.tolist() for quantity, row in values.items()},
                "against_fp32": {q.name: asdict(judged.change(FP32, name, q)) for q in QUANTITIES},
            }
            for name, values in judged.values.items()
        },
    }


def markdown(judged: Judged, clips: Sequence[Clip], speed: Speed, ran: str) -> list[str]:
    """Return the lines of the report."""
    contestants = {name: c for name, c in CONTESTANTS.items() if name in judged.values}
    stock = [name for name, c in contestants.items() if c.kind == "stock"]
    deciding = [quantity for quantity in QUANTITIES if quantity.name in _DECIDING]
    shown = {
        q.label: [f"`{name}`" for name in stock if order_is_shown(judged, q, name)]
        for q in QUANTITIES
    }
    values = {"judged": judged, "clips": len(clips), "speed": speed, "command": ran}
    values |= {"fp32": FP32, "ours": OURS, "naive": NAIVE, "quantities": QUANTITIES}
    values |= {"contestants": contestants, "stock": stock, "shown": shown}
    values |= {"missing": [q.label for q in deciding if not order_is_shown(judged, q)]}
    values |= {"others": [name for name in judged.values if name not in {RECORDING, FP32}]}
    values |= {"environment": describe_environment(), "speechmos": installed_version("speechmos")}
    template = Path(__file__).with_name("report.md")
    return render(template, values, {"change": _change, "mean": _mean})


def _mean(value: float, quantity: Quantity) -> str:
    return f"{100 * value:.1f}" if quantity.share else f"{value:.3f}"


def _change(change: Change, quantity: Quantity) -> str:
    factor, digits = (100, 1) if quantity.share else (1, 3)
    ends = interval((change.low, change.high), factor, digits)
    return f"{signed(factor * change.mean, digits)} ({ends})"
