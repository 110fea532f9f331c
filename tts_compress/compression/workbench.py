"""A graph with its calibration data: prepared and observed once, and converted by many recipes.

The record of it is a `Manifest`.
"""

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onnx

from tts_compress.artifact import (
    CalibrationRecord,
    LayerRecord,
    Manifest,
    Source,
    TrainingRecord,
    join_runs,
    sha256_of,
)
from tts_compress.config import data_names
from tts_compress.environment import describe_environment
from tts_compress.errors import (
    MissingExtraError,
    ModelError,
    RecipeError,
    TextError,
    TTSCompressWarning,
)
from tts_compress.models.base import GraphModel, Model, OnnxGraph
from tts_compress.models.feeds import FEEDS_SUFFIX, graph_inputs, open_feeds
from tts_compress.models.speakers import primary_language, speakers_in_turn
from tts_compress.numerics.ranges import Range
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.modules import name_by_modules
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.precision import length_outputs
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
from tts_compress.onnx.quantize.decisions import Decision, decide, follow_weights, static_outputs
from tts_compress.onnx.session import Feeds
from tts_compress.onnx.weight_codes import Chosen
from tts_compress.progress import Progress, Silent
from tts_compress.qat.options import TrainingRun
from tts_compress.recipes.formats import Activations, Quality, Weights
from tts_compress.recipes.recipe import (
    Calibration,
    CalibrationSet,
    Recipe,
    Rule,
    read_calibration_set,
)
from tts_compress.recipes.recipe import Format as Form

if TYPE_CHECKING:
    from tts_compress.torch.convert import Converted

_MOST_FLOAT32 = 0.1
"""Share of the weights above which FP32 is not left without a word."""

_SHOWN_LAYERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Settings of one compression besides its recipe."""

    seed: int
    """Seed of the noise the model is calibrated with."""

    progress: Progress
    quality: Quality | None = None
    """Bound on the damage to a graph's sound; None for the recipe's."""

    is_asked: bool = False
    """True where the caller names that bound, and not the recipe."""

    training: TrainingRun | None = None
    """None where the model is not trained."""


def describe(
    model: Model | Source,
    recipe: Recipe,
    outcome: "Conversion | Converted",
    *,
    calibration: CalibrationRecord | None,
    training: TrainingRecord | None,
    seed: int,
) -> Manifest:
    """Return the manifest of a model, by itself or its source, compressed by a recipe."""
    return Manifest(
        family=recipe.family,
        scheme=recipe.scheme,
        source=model if isinstance(model, Source) else source_of(model),
        recipe=recipe.model_dump(mode="json"),
        layers=outcome.layers,
        counts=dict(outcome.counts),
        calibration=calibration,
        seed=seed,
        environment=describe_environment(),
        training=training,
    )


def warn_of_float32(layers: Sequence[LayerRecord], kept: Sequence[LayerRecord]) -> None:
    """Warn if many weights stay in FP32 though the recipe does not say so.

    Args:
        layers: All of a model.
        kept: Those in FP32 for other reasons.
    """
    whole = sum(layer.parameters for layer in layers)
    share = sum(layer.parameters for layer in kept) / max(whole, 1)
    if share > _MOST_FLOAT32:
        warnings.warn(
            f"{share:.0%} of the weights stay in FP32{largest_layers(kept)}; `layers` of the "
            "result's manifest has all",
            TTSCompressWarning,
            stacklevel=5,  # the caller of `compress`
        )


def largest_layers(layers: Sequence[LayerRecord]) -> str:
    """Return the largest of some layers with the reasons for their format, as part of a text."""
    ordered = sorted(layers, key=lambda layer: -layer.parameters)[:_SHOWN_LAYERS]
    shown = (f"'{x.module}' ({x.operator}, {x.parameters:,}): {x.reason}" for x in ordered)
    return "".join(f"; {text}" for text in shown)


def join_manifests(manifests: Mapping[str, Manifest]) -> Manifest:
    """Return the record of a model, whose recipe and calibration are those of its first graph.

    Args:
        manifests: Records of its graphs, by the names of parts in their order.
    """
    records = list(manifests.values())
    layers = [
        # A colon, because blame looks for components of the first graph itself.
        replace(layer, module=f"{name}:{layer.module}" if name else layer.module)
        for name, record in manifests.items()
        for layer in record.layers
    ]
    return replace(
        records[0],
        counts=dict(sum((Counter(record.counts) for record in records), Counter[str]())),
        layers=tuple(layers),
        training=next((record.training for record in records if record.training), None),
        run=join_runs([record.run for record in records if record.run]),
    )


def source_of(model: Model) -> Source:
    """Return what a manifest says of the model that was compressed."""
    try:
        files = model.files().weights
    except ModelError:  # made in memory
        if not isinstance(model, OnnxGraph):
            return Source(spec=model.spec, sha256="", size_bytes=0)
        content = model.graph().SerializeToString(deterministic=True)
        digest = hashlib.sha256(content).hexdigest()
        return Source(spec=model.spec, sha256=digest, size_bytes=len(content))
    digests = [sha256_of(path) for path in files]
    joined = hashlib.sha256("".join(digests).encode()).hexdigest()
    return Source(
        spec=model.spec,
        sha256=digests[0] if len(digests) == 1 else joined,
        size_bytes=sum(path.stat().st_size for path in files),
    )


CalibrationData: TypeAlias = str | Path | tuple[str, ...] | None
"""Calibration in the place of the recipe's: the name or file of a set, texts, or an `.npz`."""


def is_feeds(calibration: CalibrationData) -> bool:
    """Return True if a calibration is given as a file of arrays rather than as texts."""
    return calibration is not None and str(calibration).endswith(FEEDS_SUFFIX)


def read_texts(
    settings: Calibration, chosen: CalibrationData, seed: int, language: str | None = None
) -> tuple[tuple[str, ...], CalibrationRecord]:
    """Return the texts that a model is observed on, and the record of them.

    Args:
        settings: The recipe's table.
        chosen: A calibration set, or texts, in the place of the recipe's.
        seed: Seed of the noise the model speaks them with.
        language: The language the model states: a shipped set of that language takes the place of
            the shipped one that the recipe names, but not of a file or of a chosen one.
    """
    name, texts = "texts", chosen
    if not isinstance(texts, tuple):
        if not (stated := chosen or settings.set):
            raise RecipeError("the recipe names no calibration set; give a set's name or TOML file")
        source = read_calibration_set(str(stated))
        if chosen is None and language is not None and not str(stated).endswith(".toml"):
            source = _in_language(source, language)
        name, texts = source.name, source.texts
    texts = texts[: settings.utterances]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return texts, _record(settings, name, digest, len(texts), seed)


def open_calibration(
    model: OnnxGraph,
    settings: Calibration,
    chosen: CalibrationData,
    *,
    seed: int,
    part: str = "",
) -> tuple[Calls, CalibrationRecord]:
    """Return the inputs that a graph is observed on, and the record of them.

    Args:
        model: A voice, or a bare graph.
        settings: The recipe's table.
        chosen: The user's choice in place of the recipe's: a calibration set for a voice, an
            `.npz` for a bare graph, which has no other.
        seed: Seed of the noise that the graph draws.
        part: Name of the graph in the model.
    """
    if isinstance(model, GraphModel):
        if is_feeds(chosen):
            raise RecipeError(
                f"'{model.spec}' is a voice, which is calibrated on texts, and arrays were given; "
                "give texts, or a calibration set's name or TOML file"
            )
        texts, record = read_texts(settings, chosen, seed, model.speaking.language)
        record = replace(record, speakers=speakers_in_turn(model)[: len(texts)])
        calls = partial(model.calibration_calls, texts, seed=seed, part=part)
        return Calls(calls, len(texts)), record
    if chosen is None or isinstance(chosen, tuple) or not is_feeds(chosen):
        what = "nothing was" if chosen is None else f"'{chosen}' was"
        raise RecipeError(
            f"'{model.spec}' is a bare graph, which is calibrated on arrays; {what} given: give "
            "an .npz with arrays named '<call>/<input>', or dictionaries of them in Python"
        )
    path, graph = Path(chosen), model.graph()
    feeds = open_feeds(path, graph_inputs(graph))
    count = min(feeds.calls, settings.utterances)
    noise = [value.name for value in feed_noise(graph).graph.input]

    def read() -> Iterator[Feeds]:
        for number, call in enumerate(feeds.read(count)):
            yield call | draw_noise(noise, seed=(seed, number))

    return Calls(read, count), _record(settings, path.name, sha256_of(path), count, seed)


def trial_feeds(
    model: OnnxGraph, calls: Calls | None, *, seed: int, part: str = ""
) -> Feeds | None:
    """Return real inputs of a graph for one run; None where there are none.

    Args:
        model: A voice, which speaks a text of its language, else an English one; or a bare graph.
        calls: Inputs that it is calibrated on; None if it is not.
        seed: Seed of the noise that the graph draws.
        part: Name of the graph in the model.
    """
    if calls is None and isinstance(model, GraphModel):
        name = primary_language(model.speaking.language or "en")
        is_shipped = name in data_names("calib/sets")
        texts = read_calibration_set(name if is_shipped else "en").texts[:1]
        # The model may have no tokens of the text; a phonemizer is needed for calibration only.
        with suppress(TextError, MissingExtraError):
            return next(model.calibration_calls(texts, seed=seed, part=part), None)
    return None if calls is None else next(calls.feeds(), None)


def _in_language(source: CalibrationSet, language: str) -> CalibrationSet:
    """Return the shipped set of a language; without one, `source`, with a warning."""
    wanted, shipped = primary_language(language), data_names("calib/sets")
    if wanted == primary_language(source.language):
        return source
    if wanted in shipped:
        return read_calibration_set(wanted)
    warnings.warn(
        f"the voice speaks {language!r}, and there is no calibration set of that language (but "
        f"{', '.join(shipped)}); it is calibrated on {source.name!r}: give texts with "
        "--calibration",
        TTSCompressWarning,
        stacklevel=2,
    )
    return source


def _record(
    settings: Calibration, name: str, digest: str, count: int, seed: int
) -> CalibrationRecord:
    return CalibrationRecord(
        set=name, sha256=digest, utterances=count, observer=settings.observer, seed=seed
    )


_EVERYTHING = (Rule(match="*", weights=Weights.INT8, activations=Activations.STATIC),)


class Workbench:
    """Converts a graph again and again; what recipes have in common is done once.

    Channels are equalized once, as if everything ran in integers but, in a choice by listening,
    what durations depend on. `compress` without a bound on quality equalizes only what its recipe
    puts in integers, so its bytes and sound differ a little.

    Args:
        model: The model, in FP32.
        recipe: Its form, and how it calibrates, hold for everything that is converted.
        calibration: Calibration in the place of the recipe's.
        part: Name of the graph in the model.
        seed: Seed of the calibration's noise.
        held_out: Calls that nothing is observed on, at most a quarter.
    """

    def __init__(
        self,
        model: OnnxGraph,
        recipe: Recipe,
        *,
        calibration: CalibrationData = None,
        part: str = "",
        seed: int = 0,
        held_out: int = 0,
    ) -> None:
        self.model, self.recipe, self.part = model, recipe, part
        self.lengths = model.parts[part].lengths
        self.calibration, self._seed, self._held_out = calibration, seed, held_out
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
                decisions = decide(graph.model, whole, self.lengths, may_keep_all=True)
                if self._held_out:  # those compute in FP32, and weights lose by equal activations
                    real = length_outputs(graph.model, self.lengths)
                    decisions = [d for d in decisions if d.output not in real]
                if static_outputs(decisions):
                    make_residuals_float(graph, decisions, whole)
                    equalize_decided(graph, decisions, whole, self.calls())
                    graph = Graph(graph.finish())
            self._observed[form] = Observed(graph, Silent())
        return self._observed[form]

    def decisions(self, recipe: Recipe) -> list[Decision]:
        """Return what a recipe does with each operator."""
        key = recipe.model_dump_json(include={"component", "format"})
        if key not in self._decisions:
            self._decisions[key] = decide(self.base(recipe.format), recipe, self.lengths)
        return self._decisions[key]

    def observe(self, recipes: Sequence[Recipe]) -> None:
        """Find what recipes need: ranges in one pass over calibration, codes in another."""
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
        ranges = base.find_ranges(tensors, decisions, settings, self.calls())
        return ranges, base.find_codes(decisions, self.calls())

    def convert(self, recipe: Recipe) -> onnx.ModelProto:
        """Return the graph that a recipe makes of the model."""
        return convert(self.conversion(recipe))

    def conversion(self, recipe: Recipe) -> Conversion:
        """Return the FP32 graph and everything that determines what a recipe makes of it."""
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
        summed = recipe.float_residuals and recipe.format == "qoperator"
        if not (summed and static_outputs(decisions)):
            return self.base(recipe.format), decisions
        graph = Graph(copy_model(self.base(recipe.format)))
        make_residuals_float(graph, decisions, recipe)
        return graph.model, follow_weights(graph, decisions)

    def open_calibration(self) -> tuple[Calls, CalibrationRecord]:
        """Return the inputs that the graph is observed on, drawn in each pass, and their record."""
        settings = self.recipe.calibration
        assert settings is not None, "only calibrated integers need ranges"
        return open_calibration(
            self.model, settings, self.calibration, seed=self._seed, part=self.part
        )

    def calls(self) -> Calls:
        """Return the inputs that the graph is observed on; they are drawn once."""
        if self._calls is None:
            calls, self.record = self.open_calibration()
            feeds = list(calls.feeds())  # phonemes and noise take as long as running them
            kept = max(1, len(feeds) - min(self._held_out, len(feeds) // 4))
            self._calls = Calls(lambda: iter(feeds[:kept]), kept)
            self.held_out = feeds[kept:] or feeds
        return self._calls
