"""A realistic evaluation, of a small voice and its int8 version on 24 utterances; an artifact."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser import Browser
from tts_compress.artifact import MANIFEST_NAME, CalibrationRecord, Manifest, Source, with_files
from tts_compress.audio import Audio
from tts_compress.evaluation import result as doc
from tts_compress.evaluation.metric import Pair
from tts_compress.evaluation.metrics import cost, error_rates
from tts_compress.evaluation.metrics.pacing import Duration
from tts_compress.evaluation.metrics.signal import Health, MeanAndTail, Signal
from tts_compress.evaluation.page_audio import encode_opus

_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Please leave the blue folder on the kitchen table before noon.",
    "Her train was late, so the meeting began without her.",
    "Seven small boats crossed the harbour in the morning fog.",
    "Nobody knew why the old clock had stopped at midnight.",
    "A cup of strong coffee is all I need to begin the day.",
    "The museum opens at ten and closes at half past five.",
    "We walked along the river until the rain began to fall.",
    "Turn left at the second light, and the house is on your right.",
    "The committee will publish its report early next week.",
    "Fresh bread smells best when it has just left the oven.",
    "He counted the coins twice and put them back in the jar.",
)
_HEARD = {"fox": "box", "folder": "fold", "train": "rain", "harbour": "arbor", "jar": "car"}


def rate(
    reference: float, candidate: float, interval: tuple[float, float]
) -> error_rates.ErrorRate:
    """Return an error rate with plausible counts; the numbers are shares."""

    def counts(share: float) -> error_rates.RateCounts:
        errors = round(share * 268)
        return error_rates.RateCounts(
            rate=share,
            substitutions=errors - 2 * (errors // 4),
            insertions=errors // 4,
            deletions=errors // 4,
            reference_tokens=268,
            above_half=0.0,
        )

    return error_rates.ErrorRate(
        reference=reference,
        candidate=candidate,
        delta=candidate - reference,
        interval=interval,
        counts=Pair(reference=counts(reference), candidate=counts(candidate)),
    )


def _transcript(text: str) -> str:
    return text.lower().replace(",", "").replace(".", "")


def _speech(text: str, *, chance: random.Random, name: str, share: float) -> doc.Speech:
    """Return a text as transcribed by a recognizer that mishears some words."""
    words, errors = [], 0
    for word in _transcript(text).split():
        if chance.random() >= share:
            words.append(word)
            continue
        errors += 1
        heard = _HEARD.get(word, "")
        words.extend([heard] if heard else ([word, "and"] if chance.random() < 0.4 else []))
    return doc.Speech(
        hypothesis=" ".join(words),
        word_errors=errors,
        character_errors=3 * errors,
        seconds=round(len(text) / 15 + chance.random() / 5, 3),
        audio=f"wav/{name}.wav",
    )


def _utterances() -> tuple[doc.Utterance, ...]:
    chance = random.Random(7)  # noqa: S311  (a fixture, not a secret)
    made = []
    for seed in (0, 1):
        for index, text in enumerate(_TEXTS):
            name = f"{index:03d}-{seed}"
            made.append(
                doc.Utterance(
                    index=index,
                    seed=seed,
                    text=text,
                    transcript=_transcript(text),
                    words=len(text.split()),
                    characters=len(_transcript(text)),
                    reference=_speech(text, chance=chance, name=f"{name}-reference", share=0.06),
                    candidate=_speech(text, chance=chance, name=f"{name}-candidate", share=0.09),
                    log_mel_distance_db=round(chance.gauss(1.6, 0.35), 3),
                    durations_kept=round(1 - chance.random() / 50, 4),
                )
            )
    return tuple(made)


@pytest.fixture(scope="session")
def evaluation() -> doc.Evaluation:
    speed = cost.LatencyComparison(
        reference=cost.Latency(mean_ms=201.7, p50_ms=208.4, p95_ms=351.0, min_ms=190.2),
        candidate=cost.Latency(mean_ms=65.1, p50_ms=66.9, p95_ms=117.3, min_ms=61.0),
        ratio=201.7 / 65.1,
        interval=(2.947, 3.262),
        p50_ratio=3.11,
        threads=1,
        texts=12,
        runs=5,
    )
    measured: dict[str, Any] = {
        "wer": rate(0.0634, 0.0671, (-0.0089, 0.0182)),
        "cer": rate(0.0241, 0.0252, (-0.0031, 0.0066)),
        "size": cost.Size(
            reference_bytes=63_201_294, candidate_bytes=16_320_118, ratio=63_201_294 / 16_320_118
        ),
        "latency": speed,
        "rtf": Pair(
            reference=cost.Rtf(p50=0.061, p95=0.074), candidate=cost.Rtf(p50=0.0196, p95=0.0241)
        ),
        "memory": cost.MemoryComparison(
            reference=cost.Memory(
                peak_bytes=412_000_000, idle_bytes=96_000_000, model_bytes=316_000_000
            ),
            candidate=cost.Memory(
                peak_bytes=263_000_000, idle_bytes=96_000_000, model_bytes=167_000_000
            ),
        ),
        "load": Pair(
            reference=cost.LoadTime(open_ms=640.0), candidate=cost.LoadTime(open_ms=702.5)
        ),
        "signal": Signal(
            log_mel_distance_db=1.61,
            log_mel_distance=MeanAndTail(mean=1.61, p95=2.2),
            snr_db=38.4,
            equal_length=0.875,
            same_timing=0.75,
            same_timing_log_mel_distance_db=0.62,
        ),
        "duration": Duration(ratio=0.9991, kept=0.9934),
        "health": Pair(
            reference=Health(silent=0, clipped=0, not_finite=0, empty=0),
            candidate=Health(silent=0, clipped=0, not_finite=0, empty=0),
        ),
        "floors": error_rates.Baselines(
            other_seeds=rate(0.0634, 0.0597, (-0.0201, 0.0127)),
            other_seeds_log_mel_distance_db=4.72,
            recognizer=rate(0.0634, 0.0653, (-0.0024, 0.0061)),
        ),
    }
    return doc.Evaluation(
        reference=doc.ModelIdentity(
            spec="en_US-lessac-medium.onnx", family="piper", scheme="fp32", sha256="5e" * 32
        ),
        candidate=doc.ModelIdentity(
            spec="out/en_US-lessac-medium-int8", family="piper", scheme="int8", sha256="a7" * 32
        ),
        suite=doc.SuiteIdentity(
            name="en-quick",
            sha256="0c" * 32,
            texts=12,
            seeds=(0, 1),
            recognizer="pocketsphinx 5.0.4, en-us, en-us.lm.bin",
            normalizer="tts-compress-en 1",
        ),
        **measured,
        environment={
            "processor": {
                "architecture": "x86_64",
                "model": "Example CPU at 2.4 GHz",
                "cores": 8,
                "features": ["avx2", "avx512_vnni"],
            },
            "system": "Linux 6.1",
            "python": "3.11.7",
            "packages": {"tts-compress": "0.1.0", "onnxruntime": "1.20.1"},
        },
        utterances=_utterances(),
    )


@pytest.fixture(scope="session")
def mailed(evaluation: doc.Evaluation) -> doc.Evaluation:
    """Four utterances with the audio of all but the last inside, and no files."""
    inside = {
        (one.index, one.seed): Pair(
            reference=encode_opus(_tone(220, one.reference.seconds)),
            candidate=encode_opus(_tone(233, one.candidate.seconds)),
        )
        for one in evaluation.utterances[:3]
    }
    document = evaluation.model_dump()
    document["utterances"] = document["utterances"][:4]
    for utterance in document["utterances"]:
        utterance["reference"]["audio"] = utterance["candidate"]["audio"] = None
    return doc.Evaluation.model_validate(document).model_copy(update={"opus": inside})


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the pictures, which take most of the time and hold no text of anybody's."""
    monkeypatch.setattr("tts_compress.report.html.plots", lambda _: ())


def _tone(pitch: float, seconds: float) -> Audio:
    time = np.arange(int(seconds * 8000), dtype=np.float32) / 8000
    samples = (0.2 * np.sin(2 * np.pi * pitch * time)).astype(np.float32)
    return Audio(samples=samples, sample_rate=8000)


@pytest.fixture(scope="session")
def altered(evaluation: doc.Evaluation) -> Callable[[dict[str, Any]], doc.Evaluation]:
    """Return the evaluation with other values at some dotted paths, such as `wer.delta`."""

    def alter(changes: dict[str, Any]) -> doc.Evaluation:
        content: Any = evaluation.model_dump()
        for path, value in changes.items():
            *parents, last = path.split(".")
            inner = content
            for part in parents:
                inner = inner[int(part)] if part.isdigit() else inner[part]
            inner[last] = value
        return doc.Evaluation.model_validate(content)

    return alter


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    chromium.open_tab()
    yield chromium
    chromium.close_tab()


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Return an artifact that was made up, without a card, and a file that is not its own."""
    folder = tmp_path / "voice"
    folder.mkdir()
    (folder / "voice.onnx").write_bytes(bytes(range(256)) * 4)
    (folder / "voice.onnx.json").write_text('{"audio": {"sample_rate": 16000}}', encoding="utf-8")
    manifest = Manifest(
        family="piper",
        scheme="int8",
        source=Source(spec="/home/anna/voices/voice.onnx", sha256="ab" * 32, size_bytes=4096),
        recipe={},
        layers=(),
        counts={"Conv int8/static": 69},
        calibration=CalibrationRecord(
            set="en", sha256="cd" * 32, utterances=64, observer="percentile", seed=0
        ),
        seed=0,
        environment={"packages": {"tts-compress": "0.1.0", "onnxruntime": "1.31.1"}},
    )
    manifest = with_files(manifest, folder, "voice.onnx")
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    (folder / "notes.txt").write_text("not for others", encoding="utf-8")
    return folder
