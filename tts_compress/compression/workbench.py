"""A graph, prepared and observed once, and converted by many recipes."""

from collections.abc import Sequence
from pathlib import Path

import onnx

from tts_compress.artifact import CalibrationRecord
from tts_compress.compression.calibration import open_calibration
from tts_compress.models.base import OnnxGraph
from tts_compress.numerics.ranges import Range
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.modules import name_by_modules
from tts_compress.onnx.quantize.collect import Calls
from tts_compress.onnx.quantize.convert import (
    Conversion,
    Observed,
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
from tts_compress.onnx.session import Feeds
from tts_compress.onnx.weight_codes import Chosen
from tts_compress.progress import Progress, Silent
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.recipes.recipe import Format as Form
from tts_compress.recipes.recipe import Recipe, Rule

_EVERYTHING = (Rule(match="*", weights=Weights.INT8, activations=Activations.STATIC),)


class Workbench:
    """Converts a graph again and again; what recipes have in common is done once.

    Channels are equalized once, as if everything ran in integers. `compress` without a bound on
    quality equalizes only what its recipe puts in integers, so its bytes and sound differ a little.

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
        self._observed: dict[Form, Observed] = {}
        self._decisions: dict[str, list[Decision]] = {}
        self._calls: Calls | None = None
        self.held_out: list[Feeds] = []
        """Calls that nothing is observed on, so that what they say can be judged."""

        self.record: CalibrationRecord | None = None

    def base(self, form: Form) -> onnx.ModelProto:
        """Return the FP32 graph that is converted; not to be changed."""
        return self._base(form).graph.model

    def _base(self, form: Form) -> Observed:
        if form not in self._observed:
            batch_one = self.model.sample_rate is not None
            graph = convertible_graph(self.model.graph(self.part), form, batch_one=batch_one)
            name_by_modules(graph.model.graph)
            calibration = self.recipe.calibration
            if form == self.recipe.format and calibration is not None and calibration.equalize:
                whole = self.recipe.model_copy(update={"component": _EVERYTHING})
                decisions = decide(graph.model, whole, self.lengths)
                if static_outputs(decisions):
                    make_residuals_float(graph, decisions, whole)
                    equalize_decided(graph, decisions, whole, self.calls())
                    graph = Graph(graph.finish())
            self._observed[form] = Observed(graph, self._progress)
        return self._observed[form]

    def decisions(self, recipe: Recipe) -> list[Decision]:
        """Return what a recipe does with each operator.

        Raises:
            QuantizationError: It compresses nothing.
        """
        key = recipe.model_dump_json(include={"component", "format"})
        if key not in self._decisions:
            self._decisions[key] = decide(self.base(recipe.format), recipe, self.lengths)
        return self._decisions[key]

    def observe(self, recipes: Sequence[Recipe]) -> None:
        """Find what recipes need, each kind of it in one pass over the calibration set."""
        for form in dict.fromkeys(recipe.format for recipe in recipes):
            tensors: dict[str, None] = {}
            decisions: list[Decision] = []
            for recipe in (recipe for recipe in recipes if recipe.format == form):
                tensors |= dict.fromkeys(observed_tensors(*self._convertible(recipe), form))
                decisions += self.decisions(recipe)
            self._find(self._base(form), list(tensors), decisions)

    def _find(
        self, base: Observed, tensors: Sequence[str], decisions: Sequence[Decision]
    ) -> tuple[dict[str, Range], dict[str, Chosen]]:
        """Return the ranges of tensors, and the codes of weights that GPTQ chooses."""
        settings = self.recipe.calibration
        if settings is None:
            assert not tensors, "only calibrated integers need ranges"
            return {}, {}
        ranges = base.find_ranges(tensors, settings, self.calls())
        base.find_channels(decisions, self.calls())
        return ranges, base.find_codes(decisions, self.calls())

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
        base = self._base(recipe.format)
        tensors = observed_tensors(graph, decisions, recipe.format)
        ranges, chosen = self._find(base, tensors, self.decisions(recipe))
        return Conversion(
            graph=graph,
            decisions=tuple(decisions),
            ranges=ranges,
            form=recipe.format,
            lengths=self.lengths,
            by_channel=base.by_channel,
            chosen=chosen,
        )

    def _convertible(self, recipe: Recipe) -> tuple[onnx.ModelProto, list[Decision]]:
        """Return the FP32 graph that a recipe converts, and what it does with each operator."""
        decisions = self.decisions(recipe)
        if recipe.format != "qoperator" or not static_outputs(decisions):
            return self.base(recipe.format), decisions
        graph = Graph(copy_model(self.base(recipe.format)))
        make_residuals_float(graph, decisions, recipe)
        return graph.model, follow_weights(graph, decisions)

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
