"""A voice's graph, prepared and observed once, and converted by many recipes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx

from tts_compress.compression.calibration import open_calibration
from tts_compress.errors import ModelError
from tts_compress.models.base import GraphChain, GraphModel, Model
from tts_compress.numerics.four_bits import Blocks
from tts_compress.numerics.histogram import Range, choose_range
from tts_compress.onnx import integer
from tts_compress.onnx.graph import Array, Graph, copy_model
from tts_compress.onnx.quantize.collect import Calls, collect
from tts_compress.onnx.quantize.convert import (
    Conversion,
    convert,
    convertible_graph,
    observed_tensors,
)
from tts_compress.onnx.quantize.decisions import Decision, decide, static_outputs
from tts_compress.onnx.quantize.equalize import equalize_channels
from tts_compress.onnx.quantize.gptq import choose_codes
from tts_compress.recipes.formats import Activations, Algorithm, Weights
from tts_compress.recipes.recipe import Format as Form
from tts_compress.recipes.recipe import Recipe, Rule

_EVERYTHING = (Rule(match="*", weights=Weights.INT8, activations=Activations.STATIC),)


@dataclass(slots=True)
class _Base:
    """The graph in the form that is converted, and what was observed of it so far."""

    model: onnx.ModelProto
    ranges: dict[str, Range] = field(default_factory=dict)
    codes: dict[tuple[str, int, str], Blocks[Array] | None] = field(default_factory=dict)
    """Four-bit weights that GPTQ chose, by operator, block and arithmetic."""


class Workbench:
    """Converts a voice again and again; what recipes have in common is done once.

    Channels are equalized once, as if everything ran in integers; a recipe of fewer integers would
    equalize fewer tensors, so its own bytes and sound differ a little. `compress` makes these.

    Args:
        model: The voice, in FP32.
        recipe: Its form, and how it calibrates, hold for everything that is converted.
        calibration: A calibration set in the place of the recipe's.
        seed: Seed of the calibration's noise.

    Raises:
        ModelError: The model is no voice of a single ONNX graph.
    """

    def __init__(
        self,
        model: GraphModel,
        recipe: Recipe,
        *,
        calibration: str | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.recipe = model, recipe
        self._given, self._seed = calibration, seed
        self._bases: dict[Form, _Base] = {}
        self._calls: Calls | None = None

    def base(self, form: Form) -> onnx.ModelProto:
        """Return the FP32 graph that is converted; not to be changed."""
        if form not in self._bases:
            graph = convertible_graph(self.model.graph(), form, batch_one=True)
            self._bases[form] = _Base(graph.model)
            calibration = self.recipe.calibration
            if form == self.recipe.format and calibration is not None and calibration.equalize:
                whole = self.recipe.model_copy(update={"component": _EVERYTHING})
                decisions = decide(graph.model, whole, self.model.lengths)
                if static_outputs(decisions):
                    coded = observed_tensors(graph.model, decisions, form)
                    equalize_channels(graph, coded, self._calibration().feeds())
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
                    graph = self._float_residuals(recipe, self.decisions(recipe))
                    wanted |= dict.fromkeys(observed_tensors(graph, self.decisions(recipe), form))
            self._find_ranges(self._bases[form], list(wanted))
            asked = [d for r in recipes if r.format == form for d in self.decisions(r)]
            self._find_codes(self._bases[form], asked)

    def convert(self, recipe: Recipe) -> onnx.ModelProto:
        """Return the graph that a recipe makes of the voice.

        Raises:
            QuantizationError: The recipe does not fit the graph.
        """
        decisions = self.decisions(recipe)
        base = self._bases[recipe.format]
        graph = self._float_residuals(recipe, decisions)
        tensors = observed_tensors(graph, decisions, recipe.format)
        self._find_ranges(base, tensors)
        return convert(
            Conversion(
                graph=graph,
                decisions=tuple(decisions),
                ranges={name: base.ranges[name] for name in tensors},
                form=recipe.format,
                lengths=self.model.lengths,
                chosen=self._find_codes(base, decisions),
            )
        )

    def _float_residuals(self, recipe: Recipe, decisions: Sequence[Decision]) -> onnx.ModelProto:
        model = self.base(recipe.format)
        if not (recipe.float_residuals and recipe.format == "qoperator"):
            return model
        graph = Graph(copy_model(model))
        integer.make_residuals_float(graph, static_outputs(decisions))
        return graph.finish()

    def _find_ranges(self, base: _Base, tensors: Sequence[str]) -> None:
        missing = [name for name in tensors if name not in base.ranges]
        if missing:
            settings = self.recipe.calibration
            assert settings is not None, "only calibrated integers need ranges"
            seen = collect(base.model, missing, self._calibration().feeds())
            base.ranges |= {name: choose_range(seen[name], settings) for name in missing}

    def _find_codes(self, base: _Base, decisions: Sequence[Decision]) -> dict[str, Blocks[Array]]:
        """Return the weights that decisions leave to GPTQ, each chosen once."""
        asked = {_code_key(d): d for d in decisions if d.algorithm == Algorithm.GPTQ}
        missing = {key: d for key, d in asked.items() if key not in base.codes}
        # One operator may be asked for in several arithmetics.
        for arithmetic in dict.fromkeys(d.activations for d in missing.values()):
            own = [d for d in missing.values() if d.activations == arithmetic]
            graph = Graph(copy_model(base.model))
            found = choose_codes(graph, own, self._calibration().feeds())
            base.codes |= {_code_key(d): found.get(d.output) for d in own}
        chosen = {d.output: base.codes[key] for key, d in asked.items()}
        return {output: codes for output, codes in chosen.items() if codes is not None}

    def _calibration(self) -> Calls:
        if self._calls is None:
            assert self.recipe.calibration is not None, "only calibrated integers need ranges"
            calls, _ = open_calibration(
                self.model, self.recipe.calibration, self._given, seed=self._seed
            )
            feeds = list(calls.feeds())  # phonemes and noise take as long as running them
            self._calls = Calls(lambda: iter(feeds), len(feeds))
        return self._calls


def _code_key(decision: Decision) -> tuple[str, int, str]:
    return decision.output, decision.group_size, decision.activations


def single_graph(model: Model) -> GraphModel:
    """Return a voice of one ONNX graph as such.

    Raises:
        ModelError: The model is another one, or is compressed already.
    """
    if model.manifest is not None:
        raise ModelError(
            f"'{model.spec}' is already compressed ({model.manifest.scheme}); give the original"
        )
    chained = isinstance(model, GraphChain) and model.followers()
    if not isinstance(model, GraphModel) or chained:
        raise ModelError(
            f"'{model.spec}' is not a voice of a single ONNX graph (family {model.family!r}); "
            "only such voices are measured layer by layer: compress it by a scheme, and see "
            "`evaluate --blame`"
        )
    return model
