"""The result of an evaluation: the contents of `report.json`, as types.

The fields are the document: a dotted path such as `wer.interval.1` or `latency.candidate.p50_ms`
names a value for gates. The reference comes first, the candidate second, always. Rates are shares
(0.05 is five per cent), never percentages.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    create_model,
    model_serializer,
    model_validator,
)

import tts_compress
from tts_compress.errors import EvaluationError, nearest
from tts_compress.evaluation.listening import ListeningTest
from tts_compress.evaluation.metric import Document, Metric, Pair, Record, find_metrics
from tts_compress.reading import read_text

REPORT_NAME = "report.json"

_RETIRED = ("runtimes",)
"""Keys of older reports for what is no longer measured here."""

_LAST = ("blame", "warnings", "stages", "environment", "utterances")
"""Keys that stand after the metrics in the document."""


RECORDINGS = "recordings"
"""Family of audio that any program wrote."""


class ModelIdentity(Record):
    """A model that was measured."""

    spec: str
    family: str
    scheme: str
    """The scheme it was compressed by; `fp32` for an original."""

    sha256: str
    """Hash of the model file."""

    language: str | None = None
    """The language it states; None where it states none, and in older reports."""

    settings: dict[str, str] = Field(default_factory=dict)
    """Inference settings by name, for a system that can be run in several ways."""


class SuiteIdentity(Record):
    """The suite, and the recognizer that transcribed."""

    name: str
    sha256: str
    """Hash of texts, seeds, recognizer's name and normaliser: two results compare when it and
    `recognizer` are equal."""

    texts: int
    seeds: tuple[int, ...]
    recognizer: str
    """Recognizer, acoustic model and language model, with versions."""

    recognizer_name: str | None = None
    """The recognizer as it was chosen: `NAME` or `NAME:MODEL`; None in older reports."""

    normalizer: str
    language: str | None = None
    """Language of the texts, an espeak-ng voice name; None in older reports."""


class StageTime(Record):
    """Time that one stage of the evaluation took."""

    seconds: float
    """From its begin to its end; stages overlap."""

    steps: int
    """Steps of it; analyses that were known before are not among them."""


class Speech(Record):
    """One text with one seed, spoken by one model."""

    hypothesis: str
    """Transcript by the recognizer, normalised."""

    word_errors: int
    character_errors: int
    seconds: float
    audio: str | None
    """Path of a WAV file beside the report; None where it was not asked for."""


class Utterance(Record):
    """One text, spoken by both models with the same seed."""

    index: int
    seed: int
    text: str
    transcript: str
    """The words to be understood, normalised."""

    words: int
    characters: int
    reference: Speech
    candidate: Speech
    log_mel_distance_db: float
    durations_kept: float | None
    speaker: str | None = None
    """The voice's speaker that spoke it; None, and not in the document, for a voice of one."""

    observed: dict[str, Any] = Field(default_factory=dict)
    """Observations of it by metric: from these, resampled by text, every figure and
    interval can be computed again. Empty in older reports."""

    @property
    def added_errors(self) -> int:
        """Word errors of the candidate beyond those of the reference."""
        return self.candidate.word_errors - self.reference.word_errors

    @model_serializer(mode="wrap")
    def _leave_out_no_speaker(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = write(self)
        if self.speaker is None:
            del document["speaker"]
        return document


class BlamedPart(Record):
    """The reference with one component of the candidate."""

    component: str
    role: str
    values: dict[str, float | None]
    """Values by their places in a report of that model, such as `signal.log_mel_distance_db`; None
    where there is none."""


class Blame(Record):
    """The damage of each compressed component alone."""

    texts: int
    seed: int
    ranked_by: str
    """The value that ranks."""

    parts: tuple[BlamedPart, ...]
    """The one with the most damage first."""

    together: dict[str, float | None]
    """Values that the parts would have together if each did its damage independently; the rest of
    `whole` is interaction."""

    whole: dict[str, float | None]
    """Values of the candidate, over the same texts."""


class Figures(Record):
    """The figures of an evaluation that stand for it beside others."""

    reference_bytes: int
    candidate_bytes: int
    size_ratio: float
    speed: float
    """Latency of the reference as a multiple of the candidate's."""

    speed_interval: tuple[float, float] | None
    peak_bytes: int | None
    """The most memory of a process with the candidate; None where it was not measured."""

    model_bytes: int | None = None
    """The candidate's own share of that; None in older reports of sweeps, too, as below."""

    memory_ratio: float | None = None
    """The reference's own share over the candidate's."""

    first_audio_ms: float | None = None
    """Time until the candidate's first sound, p95; None where it was not measured."""

    first_audio_ratio: float | None = None
    """That of the reference as a multiple of the candidate's, mean over runs."""

    wer_reference: float | None
    """None, as the fields below, where no recognizer listened."""

    wer_candidate: float | None
    wer_delta: float | None
    wer_interval: tuple[float, float] | None
    distortion: float | None
    """Change of the distortion as a share of what telephone coding adds; None if not measured."""

    dnsmos_reference: float | None
    dnsmos_candidate: float | None


class Evaluation(Document):
    """Everything one evaluation found.

    Beside the fields below it has an attribute per metric, such as `wer` or `latency`; their types
    are in `tts_compress.evaluation.metrics`.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any]

    format_version: Literal[1] = 1
    reference: ModelIdentity
    candidate: ModelIdentity
    suite: SuiteIdentity
    warnings: tuple[str, ...] = ()
    """Problems of the compressed model on this processor, whatever it sounds like."""

    stages: dict[str, StageTime] = Field(default_factory=dict)
    """Times of the stages by name, in the order in which they began; empty in older reports."""

    environment: dict[str, Any]
    blame: Blame | None = None
    """Damage by component; None, and not in the document, where nobody asked for it."""

    utterances: tuple[Utterance, ...]
    opus: Mapping[tuple[int, int], Pair[bytes]] = Field(default={}, exclude=True, repr=False)
    """Audio for the page as Ogg files, by index and seed; not in the document."""

    listening: ListeningTest | None = Field(default=None, exclude=True, repr=False)
    """The listening test, where it was asked for; not in the document either."""

    def __eq__(self, other: object) -> bool:
        """Return True if the documents are equal, whatever audio goes along."""
        if not isinstance(other, Evaluation):
            return NotImplemented
        return self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __repr__(self) -> str:
        return (
            f"Evaluation({self.candidate.spec!r} ({self.candidate.scheme}) against "
            f"{self.reference.spec!r}, {len(self.utterances)} utterances of {self.suite.name!r})"
        )

    def __str__(self) -> str:
        """Return the sentence that begins a report: size, speed, words and sound, with units."""
        # Rendering lies above this layer.
        sentence: str = resolve_name("tts_compress.report.summary:verdict")(self)
        return sentence

    def _repr_html_(self) -> str:
        """Return a table of the measurements for notebooks."""
        page: str = resolve_name("tts_compress.report.summary:notebook_table")(self)
        return page

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the value of a metric."""

    @model_validator(mode="before")
    @classmethod
    def _check_metrics(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        current = {key: value for key, value in content.items() if key in cls.model_fields}
        rest = {k: v for k, v in content.items() if k not in current and k not in _RETIRED}
        return current | dict(_metric_values().model_validate(rest))

    @model_serializer(mode="wrap")
    def _order(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = write(self)
        if self.blame is None:
            document.pop("blame", None)
        return document | {key: document.pop(key) for key in _LAST if key in document}

    def measured(self) -> Iterator[tuple[Metric, Any]]:
        """Yield each metric that was measured with its value, in the order of the tables."""
        for metric in find_metrics():
            value = getattr(self, metric.name)
            if value is not None:
                yield metric, value

    def headline(self) -> Figures:
        """Return the figures that stand for this evaluation beside others."""
        size, speed = self.size, self.latency
        wer = None if self.suite.recognizer_name == "none" else self.wer
        opinion, first, memory = self.dnsmos_overall, self.first_audio, self.memory
        if size is None:
            raise EvaluationError("a report of recordings has no size and no speed to compare")
        return Figures(
            reference_bytes=size.reference_bytes,
            candidate_bytes=size.candidate_bytes,
            size_ratio=size.ratio,
            speed=speed.ratio,
            speed_interval=speed.interval,
            peak_bytes=memory and memory.candidate.peak_bytes,
            model_bytes=memory and memory.candidate.model_bytes,
            memory_ratio=memory and memory.ratio,
            first_audio_ms=first and first.candidate.p95_ms,
            first_audio_ratio=first and first.ratio,
            wer_reference=wer and wer.reference,
            wer_candidate=wer and wer.candidate,
            wer_delta=wer and wer.delta,
            wer_interval=wer and wer.interval,
            distortion=self.distortion and self.distortion.value,
            dnsmos_reference=opinion and opinion.reference,
            dnsmos_candidate=opinion and opinion.candidate,
        )

    def write(self, directory: Path | str) -> Path:
        """Write `report.json`, `report.md` and `report.html` into a directory; return it.

        Raises:
            ArtifactError: The directory cannot be written.
        """
        # Rendering lies above this layer; the public package knows where.
        return tts_compress.write_report(self, directory)

    @staticmethod
    def from_json(text: str) -> "Evaluation":
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


@cache
def _metric_values() -> type[Record]:
    """Return the type of the metrics' part of the document."""
    fields: dict[str, Any] = {
        metric.name: (metric.result | None, None)
        if metric.optional or metric.of_models
        else (metric.result, ...)
        for metric in find_metrics()
    }
    return create_model("MetricValues", __base__=Record, **fields)


def path_problem(path: str) -> str | None:
    """Return why no report has a value at a dotted path; None where one may have it."""
    fields, above = Evaluation.model_fields | _metric_values().model_fields, "a report"
    for part in path.split("."):
        if part not in fields and part != "*":
            advice = "; take a name of report.json, or install the package that measures it"
            return f"there is no {part!r} in {above}{nearest(part, fields) or advice}"
        stated = fields[part if part in fields else next(iter(fields))].annotation
        kinds = get_args(stated) if get_origin(stated) in {Union, UnionType} else (stated,)
        record = next((k for k in kinds if isinstance(k, type) and issubclass(k, Record)), None)
        if record is None:  # numbers, lists, and what metrics of other packages return
            return None
        fields, above = record.model_fields, repr(part)
    return None


def read_report(path: Path | str) -> Evaluation:
    """Return the evaluation that a report holds.

    Args:
        path: A `report.json`, or the directory it lies in.

    Raises:
        EvaluationError: There is no such file, or it is not an evaluation report.
    """
    path = Path(path)
    file = path / REPORT_NAME if path.is_dir() else path
    try:
        text = read_text(file)
    except FileNotFoundError as error:
        raise EvaluationError(
            f"there is no report at '{file}'; give a {REPORT_NAME} or the directory it lies in, "
            "as written by `tts-compress evaluate`"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        raise EvaluationError(f"cannot read the report '{file}': {error}") from error
    try:
        return Evaluation.from_json(text)
    except EvaluationError as error:
        raise EvaluationError(f"'{file}' is {error}") from error
