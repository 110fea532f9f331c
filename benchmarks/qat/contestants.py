"""Ways to put a vocoder into fewer bits: without training, and trained."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.clips import Clip
from benchmarks.hifigan import Published, Vocoder, calls, load_generator, open_graph, runs
from tts_compress.compression import compress, compress_trained
from tts_compress.qat.options import TrainingOptions, TrainingRun
from tts_compress.qat.training import train_module
from tts_compress.recipes.family import find_recipe
from tts_compress.recipes.recipe import Recipe

_FRAMES = 32
"""Frames of the chunks that the torch module is trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One way to compress the vocoder."""

    name: str
    bits: int
    """Bits of the weights; activations have eight where weights have."""

    untrained: str | None = None
    """The same without training; None where there is none."""


CONTESTANTS = (
    Contestant(name="min-max", bits=8),
    Contestant(name="min-max-qat", bits=8, untrained="min-max"),
    Contestant(name="int8", bits=8),
    Contestant(name="int8-qat", bits=8, untrained="int8"),
    Contestant(name="int4-weight-only", bits=4),
    Contestant(name="int4-weight-only-qat", bits=4, untrained="int4-weight-only"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The inputs of all contestants."""

    published: Published
    train: Sequence[Clip]
    feeds: Path
    """The same clips, as inputs of the graph."""

    options: dict[int, TrainingOptions]
    """Training options by the bits of weights."""


def make(contestant: Contestant, work: Work, run: TrainingRun) -> Vocoder:
    """Return the vocoder that a contestant is."""
    if contestant.bits == 4:
        return _in_torch(contestant, work, run)
    model = open_graph(work.published.graph)
    if contestant.untrained is None:
        recipe = _plain("int8") if contestant.name == "min-max" else find_recipe("onnx", "int8")
        return runs(compress(model, "int8", recipe=recipe, calibration=work.feeds, quality="fast"))
    recipe = _plain("int8-qat") if contestant.name == "min-max-qat" else None
    run = replace(run, options=work.options[8])
    return runs(compress_trained(model, recipe=recipe, calibration=work.feeds, run=run))


def _plain(scheme: str) -> Recipe:
    """Return a recipe that puts every convolution into integers, between observed extremes.

    That is `quantize_static` of onnxruntime with its defaults, but per channel.
    """
    recipe = find_recipe("onnx", scheme)
    assert recipe.calibration is not None
    first = next(rule for rule in recipe.component if not rule.durations)
    rule = first.model_copy(update={"skip_graph_inputs": False, "min_channels": 1, "min_kernel": 1})
    observed = recipe.calibration.model_copy(update={"observer": "minmax", "equalize": False})
    changes = {"component": (rule,), "calibration": observed}
    return recipe.model_copy(update=changes | {"float_residuals": False, "format": "qdq"})


def _in_torch(contestant: Contestant, work: Work, run: TrainingRun) -> Vocoder:
    original = load_generator(work.published.checkpoint)
    if contestant.untrained is None:
        return calls(compress(original, "int4-weight-only"))
    recipe = find_recipe("module", "int4-weight-only")
    run = replace(run, options=replace(work.options[4], loss="waveform"))
    return calls(train_module(original, recipe, _chunks(work.train), run=run))


def _chunks(clips: Sequence[Clip]) -> list[torch.Tensor]:
    return [
        torch.from_numpy(clip.mel[..., start : start + _FRAMES])
        for clip in clips
        for start in range(0, clip.mel.shape[-1] - _FRAMES, _FRAMES)
    ]
