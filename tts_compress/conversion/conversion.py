"""What is decided and observed of a graph before anything is rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tts_compress.errors import QuantizationError
from tts_compress.models.base import TTSModel
from tts_compress.numerics.histogram import choose_range
from tts_compress.onnx import integer
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.quantize.collect import collect
from tts_compress.onnx.quantize.decisions import decide, static_outputs
from tts_compress.onnx.quantize.equalize import equalize_channels
from tts_compress.onnx.quantize.float_residuals import make_sums_real
from tts_compress.onnx.quantize.prepare import prepare, typed
from tts_compress.onnx.quantize.static import observed_tensors
from tts_compress.onnx.rewrite import rewrite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx

    from tts_compress.conversion.calibration import CalibrationData
    from tts_compress.models.base import OnnxGraph
    from tts_compress.onnx.quantize.decisions import Decision
    from tts_compress.onnx.quantize.static import Range
    from tts_compress.onnx.session import Feeds
    from tts_compress.progress import Progress
    from tts_compress.recipes.recipe import Format, Recipe

__all__ = ["Conversion", "prepare_conversion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """An FP32 graph, and everything that its compressed form follows from."""

    graph: onnx.ModelProto
    """Rewritten for the form it will have, and equal to the original up to rounding in FP32."""

    decisions: tuple[Decision, ...]
    """What happens to which operator."""

    ranges: Mapping[str, Range]
    """Lowest and highest value of every tensor that is rounded with a range known before."""

    form: Format = "qdq"
    """How the finished graph says what is integer."""

    @property
    def static(self) -> frozenset[str]:
        """Outputs of the operators that compute in calibrated integers."""
        return static_outputs(self.decisions)


def prepare_conversion(
    model: OnnxGraph,
    recipe: Recipe,
    calibration: CalibrationData | None,
    *,
    progress: Progress,
) -> Conversion:
    """Return what a model's graph is converted from, as a recipe says.

    Args:
        model: Any model that is an ONNX graph; not modified.
        recipe: What happens to which module.
        calibration: What to observe activations on; None where the recipe needs none.
        progress: Is told of every call.

    Raises:
        QuantizationError: The model is compressed, or the recipe does not fit its graph.
    """
    if model.manifest is not None:
        raise QuantizationError(
            f"'{model.spec}' is already compressed ({model.manifest.scheme}); compress the original"
        )
    graph = prepare(model.graph())
    if recipe.format == "qoperator":
        graph = typed(rewrite(graph, spoken=isinstance(model, TTSModel))[0])
    decisions = decide(graph, recipe)
    ranges: dict[str, Range] = {}
    if recipe.calibration is not None:
        assert calibration is not None
        if recipe.float_residuals and recipe.format == "qoperator":
            graph = typed(make_sums_real(graph, static_outputs(decisions))[0])
        observed = _observed(graph, decisions, recipe.format)
        if recipe.calibration.equalize:
            graph = typed(equalize_channels(graph, observed, calibration.calls()))
            decisions = decide(graph, recipe)  # its weights have other names
        calls = _reported(calibration.calls(), calibration.total, progress)
        seen = collect(feed_noise(graph), observed, calls)
        ranges = {name: choose_range(seen[name], recipe.calibration) for name in seen}
    return Conversion(
        graph=graph,
        decisions=tuple(decisions),
        ranges=ranges,
        form=recipe.format,
    )


def _observed(graph: onnx.ModelProto, decisions: Sequence[Decision], form: Format) -> list[str]:
    if form == "qoperator":
        return integer.observed_tensors(graph, static_outputs(decisions))
    return observed_tensors(graph, decisions)


def _reported(calls: Iterator[Feeds], total: int, progress: Progress) -> Iterator[Feeds]:
    for done, feeds in enumerate(calls, start=1):
        yield feeds
        progress.advance("calibrate", min(done, total), total)
    progress.advance("calibrate", total, total)
