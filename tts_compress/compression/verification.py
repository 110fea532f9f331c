"""Verification of finished graphs: one run of a graph and of its original."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime

from tts_compress.artifact import RunRecord
from tts_compress.errors import ModelError, QuantizationError, TTSCompressWarning
from tts_compress.models.feeds import made_up_feeds
from tts_compress.models.graph_file import weight_problem
from tts_compress.onnx.graph import standard_opset
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.quantize.convert import count_arithmetic
from tts_compress.onnx.quantize.prepare import OLDEST_OPSET, open_optimized
from tts_compress.onnx.session import Feeds, input_names, open_session, run_session

_MOST_DB = 200.0
_EQUAL_DB = 60.0
"""FP32 in another order stays far above."""

_LEAST_DB = 10.0
"""Below it the error has more than a tenth of an output's energy."""

_SILENT = 1e-3
"""Share of the original's largest value up to which nothing is heard."""

Outputs = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalRun:
    """One run of an original graph."""

    spec: str
    opset: int
    feeds: Feeds
    """Its inputs, with fed noise."""

    outputs: Outputs | None
    """None where it cannot be run on inputs that are made up."""


def run_original(graph: onnx.ModelProto, spec: str, feeds: Feeds | None) -> OriginalRun:
    """Run an original graph.

    Args:
        graph: The original; not modified.
        spec: Its name in errors.
        feeds: Real inputs, with fed noise; without them some are made up.
    """
    inputs, outputs = feeds or {}, None
    try:
        session = open_session(feed_noise(graph), spec, briefly=True)
        if feeds is None:
            inputs = made_up_feeds(graph) | draw_noise(input_names(session), seed=(0,))
        outputs = _run(session, inputs, spec)
    except ModelError:
        if feeds is not None:
            raise
    return OriginalRun(spec=spec, opset=standard_opset(graph), feeds=inputs, outputs=outputs)


def check_converted(original: OriginalRun, prepared: onnx.ModelProto) -> None:
    """Refuse a graph of an old opset unless, prepared, it returns what the original returned."""
    if original.opset >= OLDEST_OPSET:
        return
    pairs = []
    if original.outputs is not None:
        spec = f"converted {original.spec}"
        after = _run(open_session(feed_noise(prepared), spec, briefly=True), original.feeds, spec)
        pairs = [(before, after[name]) for name, before in original.outputs.items()]
    if not pairs or any(a.shape != b.shape or _snr_db(a, b) < _EQUAL_DB for a, b in pairs):
        raise QuantizationError(
            f"'{original.spec}' has opset {original.opset}; accepted are {OLDEST_OPSET} and later, "
            "and it cannot be shown that it returns the same when converted: export it again "
            f"with opset_version={OLDEST_OPSET} or later"
        )


def verify(original: OriginalRun, finished: onnx.ModelProto, *, warns: bool = False) -> RunRecord:
    """Open and run a finished graph, and compare its outputs with the original's.

    If the original cannot be run, this graph need only be opened.

    Args:
        original: The original's run.
        finished: The graph.
        warns: Warn where nothing was compared, or an output is hardly the original's.
    """
    name, snrs = f"compressed {original.spec}", dict[str, float]()
    if (problem := weight_problem(finished)) is not None:
        raise QuantizationError(f"the '{name}' could not be read again: {problem}")
    try:
        graph = finished if original.outputs is None else feed_noise(finished)
        session, optimized = open_optimized(graph, name)
        if original.outputs is not None:
            snrs = _compare(original.outputs, _run(session, original.feeds, name), name)
    except ModelError as error:
        raise QuantizationError(f"{error}; try another scheme, or exclude modules") from error
    why = "no output of real numbers has the original's shape"
    if original.outputs is None:
        why = "no inputs are known that the original takes"
    reason, worst = None if snrs else why, min(snrs, key=lambda output: snrs[output], default="")
    if warns and snrs.get(worst, -math.inf) < _LEAST_DB:
        problem = f"was not compared with the original: {reason}"
        if snrs:
            problem = (
                f"returns '{worst}' with only {snrs[worst]} dB signal-to-noise on a calibration "
                "call: exclude modules in the recipe, or take int8-weight-only or fp16"
            )
        warnings.warn(f"the '{name}' {problem}", TTSCompressWarning, stacklevel=6)
    snr = snrs.get(worst)
    return RunRecord(snr_db=snr, arithmetic=count_arithmetic(optimized), reason=reason)


def _compare(before: Outputs, after: Outputs, spec: str) -> dict[str, float]:
    """Return signal-to-noise ratios in dB of real outputs that have the original's shape.

    Refuses outputs that differ in number, type or rank, or are silent or not finite where the
    original's are not.
    """
    if list(before) != list(after):
        raise QuantizationError(
            f"the '{spec}' returns {', '.join(after)}, the original {', '.join(before)}; please "
            "report this graph"
        )
    for name, value in before.items():
        if problem := _difference(value, after[name]):
            raise QuantizationError(
                f"output '{name}' of the '{spec}' {problem}; exclude modules in the recipe, or "
                "try another scheme"
            )
    real = {name: value for name, value in before.items() if _is_real(value)}
    alike = {n: (a, after[n]) for n, a in real.items() if a.shape == after[n].shape}
    return {name: _snr_db(*pair) for name, pair in alike.items()}


def _run(session: onnxruntime.InferenceSession, feeds: Feeds, spec: str) -> dict[str, Any]:
    names = [value.name for value in session.get_outputs()]
    read = {name: feeds[name] for name in input_names(session) if name in feeds}
    return dict(zip(names, run_session(session, read, spec), strict=True))


def _is_real(value: object) -> bool:
    """Return True for real numbers, and samples of 16 bits."""
    return isinstance(value, np.ndarray) and (value.dtype.kind == "f" or value.dtype == np.int16)


def _kind(value: Any) -> str:
    is_array = isinstance(value, np.ndarray)
    return f"{value.dtype} with {value.ndim} axes" if is_array else f"a {type(value).__name__}"


def _difference(before: Any, after: Any) -> str | None:
    """Return a defect of a finished graph's output beside the original's; None without one."""
    if _kind(before) != _kind(after):
        return f"is {_kind(after)}, the original's {_kind(before)}"
    if not _is_real(before) or not np.isfinite(before).all():
        return None
    if not np.isfinite(after).all():
        return "has values that are not finite, the original's has none"
    peaks = [float(np.abs(v.astype(np.float64)).max(initial=0.0)) for v in (before, after)]
    if peaks[0] > 0 and peaks[1] <= _SILENT * peaks[0]:
        return f"is silent: its largest value is {peaks[1]:.2g}, the original's {peaks[0]:.2g}"
    return None


def _snr_db(before: Any, after: Any) -> float:
    finite = np.isfinite(before) & np.isfinite(after)
    left, right = before[finite].astype(np.float64), after[finite].astype(np.float64)
    signal, noise = float(np.square(left).sum()), float(np.square(left - right).sum())
    if not noise:
        return _MOST_DB
    return round(min(10 * math.log10(max(signal, 1e-30) / noise), _MOST_DB), 1)
