"""Opinion scores by a network that the user has, such as UTMOS exported to ONNX.

It has one input, float32 samples of shape `[1, T]` or `[T]` in [-1, 1], and one output of a single
number, of which more is better. Its rate is in the file's metadata (`sample_rate`, Hz), or given.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tts_compress.artifact import sha256_of
from tts_compress.audio import Audio, Samples
from tts_compress.errors import EvaluationError, ModelError, reason
from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Measure, Metric
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.paired import Paired, Show, compare_pairs
from tts_compress.evaluation.pairs import Run

_RATES = (8_000, 96_000)

_ACCEPTED = (
    "one input of float32 samples, [1, T] or [T], and one output of a single number are accepted"
)


class Mos(Paired):
    """Mean score of a network over all utterances, and which network that is."""

    network: str
    """Name of its file."""

    sha256: str
    sample_rate: int
    """Rate of its input, Hz."""


def _settings(options: EvaluationOptions) -> dict[str, str] | None:
    """Return file, hash and rate of the user's network, which is not run here: it may not end.

    Raises:
        EvaluationError: It is no network, or its rate is unknown.
    """
    if options.mos is None:
        return None
    from tts_compress.models.graph_file import is_split, read_structure

    name, _, stated = options.mos.rpartition("@")
    path = Path(name if name and stated.isdecimal() else options.mos).expanduser()
    given = stated if name and stated.isdecimal() else None
    if not path.is_file():
        raise EvaluationError(f"there is no file '{path}'; give --mos FILE.onnx or FILE.onnx@HZ")
    try:
        if is_split(path):
            raise EvaluationError(f"'{path}' keeps weights in other files; save it as one file")
        stated_there = {one.key: one.value for one in read_structure(path).metadata_props}
    except ModelError as error:
        raise EvaluationError(f"cannot open the network: {reason(error)}") from error
    known = stated_there.get("sample_rate")
    rates = {rate for rate in (given, known) if rate}
    shown = " and ".join(sorted(rates)) or "nothing"
    if not (re.fullmatch("[0-9]{4,5}", shown) and _RATES[0] <= int(shown) <= _RATES[1]):
        raise EvaluationError(
            f"the rate of '{path}' is stated as {formatting.one_line(shown, 60)}; give one from "
            "8000 to 96000 Hz, as metadata `sample_rate` of the file or as --mos FILE.onnx@HZ"
        )
    return {"path": str(path.resolve()), "sha256": sha256_of(path), "sample_rate": shown}


def _open_network(path: Path) -> Callable[[Samples], float | None]:
    """Return a network.

    Raises:
        EvaluationError: It cannot be opened, or takes or gives something else.
    """
    from tts_compress.onnx.session import open_session

    try:
        session = open_session(path, str(path), threads=1)
    except (OSError, ModelError) as error:
        raise EvaluationError(f"cannot open the network: {reason(error)}") from error
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if not (len(inputs) == len(outputs) == 1 and _takes_samples(inputs[0])):
        found = ", ".join(f"{one.name} {one.type} {one.shape}" for one in (*inputs, *outputs))
        raise EvaluationError(f"'{path}' has {formatting.one_line(found, 200)}; {_ACCEPTED}")
    is_flat = len(inputs[0].shape) == 1

    def score(samples: Samples) -> float | None:
        """Return None where the network fails, or its output is not one finite number."""
        feed = samples if is_flat else samples[None]
        try:
            (output,) = session.run(None, {inputs[0].name: feed})
        # onnxruntime's exceptions share no base class but this one.
        except Exception:
            return None
        value = np.ravel(output)
        return float(value[0]) if value.size == 1 and np.isfinite(value[0]) else None

    return score


def _takes_samples(given: Any) -> bool:
    """Return True for float32 of shape [T] or [1, T]: of any length, and of any number or one."""
    *batch, length = given.shape or [1]
    is_single = batch in ([], [1]) or (len(batch) == 1 and isinstance(batch[0], str | None))
    return given.type == "tensor(float)" and is_single and isinstance(length, str | None)


def _open(settings: Mapping[str, str]) -> Callable[[Audio], float | None]:
    from tts_compress.evaluation.resampling import finite_samples

    path, rate = settings["path"], int(settings["sample_rate"])
    score = _open_network(Path(path))
    if score(np.zeros(rate, np.float32)) is None:
        raise EvaluationError(f"'{path}' gives a second of silence no score; {_ACCEPTED}")

    def measure(audio: Audio) -> float | None:
        samples = finite_samples(audio, rate)
        # Convolutions take nothing shorter than some windows.
        return score(np.pad(samples, (0, max(0, rate - len(samples)))))

    return measure


_MEASURE = Measure(name="mos", settings=_settings, open=_open, is_tried=True)


def _compute(run: Run) -> Mos | None:
    found, settings = run.measurements(_MEASURE), _settings(run.options)
    if found is None or settings is None:
        return None
    before, after = (np.array([one[role] for one in found], float) for role in _MEASURE.roles)
    scores = compare_pairs(run, before, after)
    if scores is None:
        raise EvaluationError(f"'{settings['path']}' scores no audio; {_ACCEPTED}")
    return Mos(
        **scores.model_dump(),
        network=Path(settings["path"]).name,
        sha256=settings["sha256"],
        sample_rate=int(settings["sample_rate"]),
    )


METRICS = (
    Metric(
        name="mos",
        group="sound",
        result=Mos,
        measure=_MEASURE,
        compute=_compute,
        optional=True,
        rows=lambda mos, _: Show(f"Opinion by {formatting.one_line(mos.network, 40)}").rows(mos),
        terms={"Opinion": "score by the network that was given with `--mos`; more is better."},
    ),
)
