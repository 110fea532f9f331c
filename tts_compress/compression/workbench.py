"""A graph, prepared and observed once, and converted by many recipes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import onnx

from tts_compress.artifact import CalibrationRecord
from tts_compress.compression.calibration import open_calibration
from tts_compress.models.base import OnnxGraph, TTSModel
from tts_compress.numerics.histogram import Range, choose_range
from tts_compress.onnx import integer
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.quantize.collect import Calls, collect
from tts_compress.onnx.quantize.convert import (
    Conversion,
    convert,
    convertible_graph,
    equalize_decided,
    make_residuals_float,
    observed_tensors,
)
from tts_compress.onnx.quantize.decisions import (
    Decision,
    decide,
    follow_weights,
    static_outputs,
)
from tts_compress.onnx.quantize.equalize import fold_factors
from tts_compress.onnx.quantize.gptq import choose_codes, is_asked
from tts_compress.onnx.weight_codes import Chosen
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.recipes.recipe import Format as Form
from tts_compress.recipes.recipe import Recipe, Rule

_EVERYTHING = (Rule(match="*", weights=Weights.INT8, activations=Activations.STATIC),)


_CodeKey: TypeAlias = tuple[str, str, int, str]


@dataclass(slots=True)
class _Base:
    """The graph in the form that is converted, and what was observed of it so far."""

    model: onnx.ModelProto
    ranges: dict[str, Range] = field(default_factory=dict)
    codes: dict[_CodeKey, Chosen | None] = field(default_factory=dict)
    """Weights whose codes GPTQ chose, by operator, bits, block and arithmetic."""


class Workbench:
    """Converts a graph again and again; what recipes have in common is done once.

    Channels are equalized once, as if everything ran in integers; a recipe of fewer integers would
    equalize fewer tensors, so its own bytes and sound differ a little. `compress` makes these.

    Args:
        model: The graph, in FP32.
        recipe: Its form, and how it calibrates, hold for everything that is converted.
        calibration: A calibration set in the place of the recipe's.
        seed: Seed of the calibration's noise.
    """

    def __init__(
        self,
        model: OnnxGraph,
        recipe: Recipe,
        *,
        calibration: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.recipe = model, recipe
        self._given, self._seed = calibration, seed
        self._bases: dict[Form, _Base] = {}
        self._calls: Calls | None = None
        self.record: CalibrationRecord | None = None

    def with_real_sums(self) -> "Workbench":
        """Return a workbench for the same graph and inputs whose sums are all in real numbers."""
        recipe = self.recipe.model_copy(update={"float_residuals": "all"})
        other = Workbench(self.model, recipe, calibration=self._given, seed=self._seed)
        other._calls, other.record = self._calls, self.record
        return other

    def base(self, form: Form) -> onnx.ModelProto:
        """Return the FP32 graph that is converted; not to be changed."""
        if form not in self._bases:
            batch_one = isinstance(self.model, TTSModel)
            graph = convertible_graph(self.model.graph(), form, batch_one=batch_one)
            self._bases[form] = _Base(graph.model)
            calibration = self.recipe.calibration
            if form == self.recipe.format and calibration is not None and calibration.equalize:
                whole = self.recipe.model_copy(update={"component": _EVERYTHING})
                decisions = decide(graph.model, whole, self.model.lengths)
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
        return decide(self.base(recipe.format), recipe, self.model.lengths)

    def observe(self, recipes: Sequence[Recipe]) -> None:
        """Find the ranges that recipes need in one pass over the calibration set."""
        for form in dict.fromkeys(recipe.format for recipe in recipes):
            wanted: dict[str, None] = {}
            for recipe in recipes:
                if recipe.format == form:
                    graph, decisions = self._convertible(recipe)
                    wanted |= dict.fromkeys(observed_tensors(graph, decisions, form))
            self._find_ranges(self._bases[form], list(wanted))

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
        return Conversion(
            graph=graph,
            decisions=tuple(decisions),
            ranges={name: base.ranges[name] for name in tensors},
            form=recipe.format,
            lengths=self.model.lengths,
            chosen=self._find_codes(base, graph, decisions),
        )

    def _convertible(self, recipe: Recipe) -> tuple[onnx.ModelProto, list[Decision]]:
        """Return the FP32 graph that a recipe converts, and what it does with each operator."""
        decisions = self.decisions(recipe)
        if recipe.format != "qoperator":
            return self.base(recipe.format), decisions
        graph, static = Graph(copy_model(self.base(recipe.format))), static_outputs(decisions)
        make_residuals_float(graph, decisions, recipe)
        fold_factors(graph, integer.on_codes(graph, static))
        return graph.model, follow_weights(graph, decisions)

    def _find_ranges(self, base: _Base, tensors: Sequence[str]) -> None:
        missing = [name for name in tensors if name not in base.ranges]
        if missing:
            settings = self.recipe.calibration
            assert settings is not None, "only calibrated integers need ranges"
            seen = collect(base.model, missing, self.calls().feeds())
            base.ranges |= {name: choose_range(seen[name], settings) for name in missing}

    def _find_codes(
        self, base: _Base, model: onnx.ModelProto, decisions: Sequence[Decision]
    ) -> dict[str, Chosen]:
        """Return the weights whose codes GPTQ chooses, each chosen once."""
        asked = {_code_key(d): d for d in decisions if is_asked(d)}
        missing = {key: d for key, d in asked.items() if key not in base.codes}
        if missing and self.recipe.calibration is not None:
            found = choose_codes(Graph(model), list(missing.values()), self.calls().feeds())
            base.codes |= dict(zip(missing, found, strict=True))
        chosen = {d.output: base.codes.get(key) for key, d in asked.items()}
        return {output: codes for output, codes in chosen.items() if codes is not None}

    def calls(self) -> Calls:
        """Return the inputs that the graph is observed on; they are drawn once."""
        if self._calls is None:
            assert self.recipe.calibration is not None, "only calibrated integers need ranges"
            calls, self.record = open_calibration(
                self.model, self.recipe.calibration, self._given, seed=self._seed
            )
            feeds = list(calls.feeds())  # phonemes and noise take as long as running them
            self._calls = Calls(lambda: iter(feeds), len(feeds))
        return self._calls


def _code_key(decision: Decision) -> _CodeKey:
    return decision.output, decision.weights, decision.group_size, decision.activations
