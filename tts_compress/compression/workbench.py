"""A graph, prepared and observed once, and converted by many recipes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import onnx

from tts_compress.artifact import CalibrationRecord
from tts_compress.compression.calibration import open_calibration
from tts_compress.models.base import OnnxGraph
from tts_compress.numerics.affine import ChannelCodes
from tts_compress.numerics.histogram import Range, choose_range
from tts_compress.onnx import integer
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.quantize.collect import Calls, collect
from tts_compress.onnx.quantize.convert import (
    STAGE,
    Conversion,
    codes_by_channel,
    convert,
    convertible_graph,
    equalize_decided,
    make_residuals_float,
    observed_tensors,
    reported,
)
from tts_compress.onnx.quantize.decisions import (
    Decision,
    channel_outputs,
    decide,
    follow_weights,
    static_outputs,
)
from tts_compress.onnx.quantize.gptq import choose_codes, is_asked
from tts_compress.onnx.session import Feeds
from tts_compress.onnx.weight_codes import Chosen
from tts_compress.progress import Progress, Silent, report_status
from tts_compress.recipes.formats import BY_CHANNEL, Activations, Weights
from tts_compress.recipes.recipe import Format as Form
from tts_compress.recipes.recipe import Recipe, Rule

_EVERYTHING = (Rule(match="*", weights=Weights.INT8, activations=Activations.STATIC),)


_CodeKey: TypeAlias = tuple[str, str, int, str]


@dataclass(slots=True)
class _Base:
    """The graph in the form that is converted, and what was observed of it so far."""

    model: onnx.ModelProto
    ranges: dict[str, Range] = field(default_factory=dict)
    channels: dict[str, ChannelCodes] = field(default_factory=dict)
    codes: dict[_CodeKey, Chosen | None] = field(default_factory=dict)
    """Weights whose codes GPTQ chose, by operator, bits, block and arithmetic."""


class Workbench:
    """Converts a graph again and again; what recipes have in common is done once.

    Channels are equalized once, as if everything ran in integers; a recipe of fewer integers would
    equalize fewer tensors, so its own bytes and sound differ a little. `compress` makes these.

    Args:
        model: The model, in FP32.
        recipe: Its form, and how it calibrates, hold for everything that is converted.
        calibration: A calibration set in the place of the recipe's.
        part: Name of the graph in the model.
        seed: Seed of the calibration's noise.
        held_out: Calls that nothing is observed on, at most a quarter.
        progress: Is advanced with each call that ranges are observed on.
    """

    def __init__(  # noqa: PLR0913  the settings of one graph
        self,
        model: OnnxGraph,
        recipe: Recipe,
        *,
        calibration: str | Path | None = None,
        part: str = "",
        seed: int = 0,
        held_out: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.model, self.recipe, self.part = model, recipe, part
        self.lengths = model.parts[part].lengths
        self._progress = progress or Silent()
        self._given, self._seed, self._held_out = calibration, seed, held_out
        self._bases: dict[Form, _Base] = {}
        self._calls: Calls | None = None
        self.held_out: list[Feeds] = []
        """Calls that nothing is observed on, so that what they say can be judged."""

        self.record: CalibrationRecord | None = None

    def base(self, form: Form) -> onnx.ModelProto:
        """Return the FP32 graph that is converted; not to be changed."""
        if form not in self._bases:
            batch_one = self.model.sample_rate is not None
            graph = convertible_graph(self.model.graph(self.part), form, batch_one=batch_one)
            self._bases[form] = _Base(graph.model)
            calibration = self.recipe.calibration
            if form == self.recipe.format and calibration is not None and calibration.equalize:
                whole = self.recipe.model_copy(update={"component": _EVERYTHING})
                decisions = decide(graph.model, whole, self.lengths)
                if static_outputs(decisions):
                    make_residuals_float(graph, decisions, whole)
                    equalize_decided(graph, decisions, whole, self.calls())
                    self._bases[form] = _Base(graph.finish())
        return self._bases[form].model

    def decisions(self, recipe: Recipe) -> list[Decision]:
        """Return what a recipe does with each operator.

        Raises:
            QuantizationError: It compresses nothing.
        """
        return decide(self.base(recipe.format), recipe, self.lengths)

    def observe(self, recipes: Sequence[Recipe]) -> None:
        """Find what recipes need, each kind of it in one pass over the calibration set."""
        for form in dict.fromkeys(recipe.format for recipe in recipes):
            wanted: dict[str, None] = {}
            several: list[Decision] = []
            for recipe in recipes:
                if recipe.format == form:
                    graph, decisions = self._convertible(recipe)
                    wanted |= dict.fromkeys(observed_tensors(graph, decisions, form))
                    several += self.decisions(recipe)
            base = self._bases[form]
            self._find_ranges(base, list(wanted))
            self._find_channels(base, several)
            self._find_codes(base, several)

    def convert(self, recipe: Recipe) -> onnx.ModelProto:
        """Return the graph that a recipe makes of the model.

        Raises:
            QuantizationError: The recipe does not fit the graph.
        """
        return convert(self.conversion(recipe))

    def conversion(self, recipe: Recipe) -> Conversion:
        """Return the FP32 graph and everything that determines what a recipe makes of it.

        Raises:
            QuantizationError: The recipe does not fit the graph.
        """
        graph, decisions = self._convertible(recipe)
        base = self._bases[recipe.format]
        tensors = observed_tensors(graph, decisions, recipe.format)
        self._find_ranges(base, tensors)
        self._find_channels(base, decisions)
        self._find_codes(base, self.decisions(recipe))
        chosen = {d.output: base.codes.get(_code_key(d)) for d in decisions if is_asked(d)}
        return Conversion(
            graph=graph,
            decisions=tuple(decisions),
            ranges={name: base.ranges[name] for name in tensors},
            form=recipe.format,
            lengths=self.lengths,
            by_channel=base.channels,
            chosen={output: codes for output, codes in chosen.items() if codes is not None},
        )

    def _convertible(self, recipe: Recipe) -> tuple[onnx.ModelProto, list[Decision]]:
        """Return the FP32 graph that a recipe converts, and what it does with each operator."""
        decisions = self.decisions(recipe)
        if recipe.format != "qoperator" or not static_outputs(decisions):
            return self.base(recipe.format), decisions
        graph = Graph(copy_model(self.base(recipe.format)))
        make_residuals_float(graph, decisions, recipe)
        return graph.model, follow_weights(graph, decisions)

    def _find_ranges(self, base: _Base, tensors: Sequence[str]) -> None:
        missing = [name for name in tensors if name not in base.ranges]
        if missing:
            settings = self.recipe.calibration
            assert settings is not None, "only calibrated integers need ranges"
            seen = collect(base.model, missing, reported(self.calls(), self._progress))
            base.ranges |= {name: choose_range(seen[name], settings) for name in missing}

    def _find_channels(self, base: _Base, decisions: Sequence[Decision]) -> None:
        """Find the codes of tensors that are rounded by channel."""
        graph = Graph(base.model)
        tensors = integer.tensors_by_channel(graph, channel_outputs(decisions))
        if missing := [name for name in tensors if name not in base.channels]:
            report_status(self._progress, STAGE, "ranges of channels")
            base.channels |= codes_by_channel(base.model, missing, self.calls().feeds())

    def _find_codes(self, base: _Base, decisions: Sequence[Decision]) -> None:
        """Find the weights whose codes GPTQ chooses, each once."""
        asked = {_code_key(d): d for d in decisions if is_asked(d)}
        missing = {key: d for key, d in asked.items() if key not in base.codes}
        if missing and self.recipe.calibration is not None:
            report_status(self._progress, STAGE, "choose codes")
            calls, several = self.calls().feeds(), list(missing.values())
            found = choose_codes(Graph(base.model), several, calls, base.channels)
            base.codes |= dict(zip(missing, found, strict=True))

    def calls(self) -> Calls:
        """Return the inputs that the graph is observed on; they are drawn once."""
        if self._calls is None:
            assert self.recipe.calibration is not None, "only calibrated integers need ranges"
            calls, self.record = open_calibration(
                self.model, self.recipe.calibration, self._given, seed=self._seed, part=self.part
            )
            feeds = list(calls.feeds())  # phonemes and noise take as long as running them
            kept = max(1, len(feeds) - min(self._held_out, len(feeds) // 4))
            self._calls = Calls(lambda: iter(feeds[:kept]), kept)
            self.held_out = feeds[kept:] or feeds
        return self._calls


def _code_key(decision: Decision) -> _CodeKey:
    # Whatever becomes of the result.
    arithmetic = "channels" if decision.activations in BY_CHANNEL else decision.activations
    return decision.output, decision.weights, decision.group_size, arithmetic
