"""What an evaluation found: the contents of `report.json`, as types.

The fields are the document: a dotted path such as `wer.interval.1` or `latency.candidate.p50_ms`
names a value for gates. The reference comes first, the candidate second, always. Rates are shares
(0.05 is five per cent), never percentages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tts_compress.errors import EvaluationError

__all__ = [
    "Distances",
    "Duration",
    "ErrorRate",
    "Evaluation",
    "Floors",
    "Health",
    "Latency",
    "LatencyComparison",
    "LoadTime",
    "Memory",
    "ModelIdentity",
    "Pair",
    "RateCounts",
    "Rtf",
    "RuntimeVariant",
    "Signal",
    "Size",
    "Speech",
    "SuiteIdentity",
    "TeacherForcedScores",
    "Utterance",
]

T = TypeVar("T")


class Record(BaseModel):
    """A part of the document: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Pair(Record, Generic[T]):
    """The same measurement of both models."""

    reference: T
    candidate: T


class ModelIdentity(Record):
    """Which model was measured."""

    spec: str
    family: str
    scheme: str
    """The scheme it was compressed by; `fp32` for an original."""

    sha256: str
    """Of the model file."""

    settings: dict[str, str] = {}
    """How it is run, by name, where a system can be run in several ways."""


class SuiteIdentity(Record):
    """What was spoken, and who listened."""

    name: str
    sha256: str
    """Of the texts, seeds, recognizer and normaliser: two results compare when it is equal."""

    texts: int
    seeds: tuple[int, ...]
    recognizer: str
    """Recognizer, acoustic model and language model, with versions."""

    normalizer: str


class RateCounts(Record):
    """Corpus-level errors of one model, summed over utterances before any division."""

    rate: float
    substitutions: int
    insertions: int
    deletions: int
    reference_tokens: int
    """Words (WER) or characters (CER) in the transcripts."""

    above_half: float
    """Share of utterances whose own rate is above 50 %."""


class ErrorRate(Record):
    """Word or character error rate of both models, and their difference."""

    reference: float
    candidate: float
    delta: float
    """Candidate minus reference; positive is worse."""

    interval: tuple[float, float]
    """95 % paired bootstrap interval of `delta`, resampling texts (Bisani and Ney 2004)."""

    counts: Pair[RateCounts]


class Size(Record):
    """Bytes on disk of the model files."""

    reference_bytes: int
    candidate_bytes: int
    ratio: float
    """Reference over candidate: how many times smaller the candidate is."""


class Latency(Record):
    """Synthesis time of one text in the system's own runtime, after warm-up, milliseconds."""

    mean_ms: float | None = None
    """Geometric mean of all runs; None in reports of before it was measured."""

    p50_ms: float
    p95_ms: float
    min_ms: float
    """Over the whole suite when every text takes its fastest run: total over number of texts."""


class LatencyComparison(Record):
    """Latency of interleaved runs, each model in a process of its own."""

    reference: Latency
    candidate: Latency
    ratio: float | None = None
    """`reference.mean_ms` over `candidate.mean_ms`: above 1 the candidate is faster. None in
    reports of before it was measured."""

    interval: tuple[float, float] | None = None
    """95 % bootstrap interval of `ratio`, resampling the pairs of runs that took turns. None for a
    single pair, and in reports of before it was measured."""

    p50_ratio: float
    """Reference over candidate, median over texts of the ratio of each text's median run. Another
    statistic than `p50_ms` over `p50_ms`; reports show it only where there is no `ratio`."""

    threads: int
    texts: int
    runs: int
    """Timed runs per text and model."""


class Rtf(Record):
    """Real-time factor: synthesis seconds per second of audio; below 1 is faster than speech."""

    p50: float
    p95: float


class Memory(Record):
    """Resident memory of a fresh process that loads the model and speaks."""

    peak_bytes: int
    idle_bytes: int
    """Of the same process before the model is loaded."""


class LoadTime(Record):
    """Time to open the model in a fresh process whose imports are done, milliseconds."""

    open_ms: float


class Distances(Record):
    """A signal distance over utterances."""

    mean: float
    p95: float


class Signal(Record):
    """How far the candidate's audio is from the reference's, given the same noise."""

    log_mel_distance_db: float
    """Mean over utterances, decibels; frames aligned by time warping where the timing differs."""

    log_mel_distance: Distances
    snr_db: float | None
    """Over the utterances of the same timing; None if there are none or they are identical."""

    equal_length: float
    """Share of utterances whose audio has the same length."""

    same_timing: float | None = None
    """Share of utterances with the same length and, where known, the same symbol durations."""

    same_timing_log_mel_distance_db: float | None = None
    """Mean over those: there every frame had the same noise, so this is the sharpest measure of
    damage. None if there are none."""


class Duration(Record):
    """How the candidate's timing differs from the reference's."""

    ratio: float
    """Total candidate seconds over total reference seconds."""

    kept: float | None
    """Share of input symbols with the same number of frames; None where unknown."""


class Health(Record):
    """Utterances that are broken whatever their words."""

    silent: int
    clipped: int
    not_finite: int
    empty: int


class Floors(Record):
    """What the same comparison shows where nothing was compressed."""

    other_seeds: ErrorRate
    """Reference against reference with other noise."""

    other_seeds_log_mel_distance_db: float
    recognizer: ErrorRate
    """Reference against an inaudibly changed copy of its own audio."""


class Speech(Record):
    """One model's rendering of one text with one seed."""

    hypothesis: str
    """What the recognizer heard, normalised."""

    word_errors: int
    character_errors: int
    seconds: float
    audio: str | None
    """Path of a WAV file beside the report, where it is kept."""


class Utterance(Record):
    """One row: the same text and seed spoken by both models."""

    index: int
    seed: int
    text: str
    transcript: str
    """What a listener should hear, normalised."""

    words: int
    characters: int
    reference: Speech
    candidate: Speech
    log_mel_distance_db: float
    durations_kept: float | None


class TeacherForcedScores(Record):
    """How far the candidate's scores are from the reference's, both reading the same tokens."""

    agreement: float
    """Share of positions with the same most probable token."""

    kl_nats: float
    """Mean Kullback-Leibler divergence of the candidate's distribution from the reference's."""

    logit_distance: float
    """RMS difference of the scores relative to the RMS of the reference's, each centred."""

    positions: int
    """Tokens compared."""

    texts: int


class RuntimeVariant(Record):
    """Both models run in another way than by default, timed in turns with the default."""

    name: str
    """`plain-attention` (no fused attention) or `compile` (torch.compile of the heavy part)."""

    latency: LatencyComparison | None
    """None where it could not be run."""

    speed: Pair[float] | None
    """Each model's own default time over its time in this way, median over texts; above 1 is
    faster than the default."""

    graphs: Pair[int] | None = None
    """Pieces of each model that were compiled, where any are."""

    failure: str | None = None
    """Why it could not be run."""


class Evaluation(Record):
    """Everything one evaluation found."""

    format_version: Literal[1] = 1
    reference: ModelIdentity
    candidate: ModelIdentity
    suite: SuiteIdentity
    wer: ErrorRate
    cer: ErrorRate
    size: Size
    latency: LatencyComparison
    rtf: Pair[Rtf]
    memory: Pair[Memory]
    load: Pair[LoadTime]
    signal: Signal
    duration: Duration
    health: Pair[Health]
    floors: Floors
    teacher_forced: TeacherForcedScores | None = None
    """None where the system is no language model, and in reports of before it was measured."""

    runtimes: tuple[RuntimeVariant, ...] = ()
    warnings: tuple[str, ...] = ()
    """What is wrong with the compressed model on this processor, whatever it sounds like."""

    environment: dict[str, Any]
    utterances: tuple[Utterance, ...]

    def write(self, directory: Path | str) -> Path:
        """Write `report.json`, `report.md` and `report.html` into a directory; return it.

        Raises:
            ArtifactError: The directory cannot be written.
        """
        # The writers import the types above.
        from tts_compress.report.writer import write_report

        return write_report(self, Path(directory))

    def to_json(self) -> str:
        """Return the document."""
        return self.model_dump_json(indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> Evaluation:
        """Return the evaluation that `to_json` wrote.

        Raises:
            EvaluationError: The text is not such a document.
        """
        try:
            return Evaluation.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "document"
            raise EvaluationError(
                f"not an evaluation report: {where}: {first['msg']} "
                f"({error.error_count()} problems in all)"
            ) from error
