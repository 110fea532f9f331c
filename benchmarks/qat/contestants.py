"""Ways to put a vocoder into fewer bits: without training, and trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.qat.generator import load_generator
from tts_compress.compression import compress, compress_trained
from tts_compress.models import open_model
from tts_compress.models.base import OnnxGraph
from tts_compress.onnx.session import open_session
from tts_compress.qat.training import train_module
from tts_compress.recipes.family import find_recipe

if TYPE_CHECKING:
    from pathlib import Path

    import onnx
    from torch import nn

    from benchmarks.qat.clips import Clips
    from tts_compress.qat.options import TrainingOptions, TrainingRun
    from tts_compress.recipes.recipe import Recipe

Vocoder = Callable[[Any], Any]
"""Turns log mel spectra into samples, both numpy arrays."""

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

    graph: Path
    """The vocoder as ONNX."""

    checkpoint: Path
    """The same as it was published."""

    clips: Clips
    feeds: Path
    """The clips that are trained on, as inputs of the graph."""

    options: dict[int, TrainingOptions]
    """Training options by the bits of weights."""


def reference(graph: Path) -> Vocoder:
    """Return a vocoder as it is in a file."""
    model = open_model(f"onnx:{graph}")
    assert isinstance(model, OnnxGraph)
    return runs(model.graph())


def runs(graph: onnx.ModelProto) -> Vocoder:
    """Return a vocoder that runs a graph on one thread."""
    session = open_session(graph, "a vocoder", threads=1)
    return lambda mel: session.run(None, {"mel": mel})[0]


def calls(module: nn.Module) -> Vocoder:
    """Return a vocoder that calls a module."""

    def call(mel: Any) -> Any:
        with torch.inference_mode():
            return module(torch.from_numpy(mel)).numpy()

    return call


def make(contestant: Contestant, work: Work, run: TrainingRun) -> Vocoder:
    """Return a vocoder that turns spectra into samples, both numpy arrays."""
    if contestant.bits == 4:
        return _in_torch(contestant, work, run)
    model = open_model(f"onnx:{work.graph}")
    assert isinstance(model, OnnxGraph)
    if contestant.untrained is None:
        recipe = _plain("int8") if contestant.name == "min-max" else find_recipe("onnx", "int8")
        small = compress(model, "int8", recipe=recipe, calibration=work.feeds, quality="fast")
        assert isinstance(small, OnnxGraph)
        return runs(small.graph())
    trained = compress_trained(
        model,
        recipe=_plain("int8-qat") if contestant.name == "min-max-qat" else None,
        calibration=work.feeds,
        run=replace(run, options=work.options[8]),
    )
    assert isinstance(trained, OnnxGraph)
    return runs(trained.graph())


def _plain(scheme: str) -> Recipe:
    """Return a recipe that puts every convolution into integers, between observed extremes.

    That is `quantize_static` of onnxruntime with its defaults, but per channel.
    """
    recipe = find_recipe("onnx", scheme)
    assert recipe.calibration is not None
    first = next(rule for rule in recipe.component if not rule.durations)
    rule = first.model_copy(update={"skip_graph_inputs": False, "min_channels": 1, "min_kernel": 1})
    observed = recipe.calibration.model_copy(update={"observer": "minmax", "equalize": False})
    changes = {
        "component": (rule,),
        "calibration": observed,
        "float_residuals": False,
        "format": "qdq",
    }
    return recipe.model_copy(update=changes)


def _in_torch(contestant: Contestant, work: Work, run: TrainingRun) -> Vocoder:
    original = load_generator(work.checkpoint)
    if contestant.untrained is None:
        return calls(compress(original, "int4-weight-only"))
    small = train_module(
        original,
        find_recipe("module", "int4-weight-only"),
        _chunks(work.clips),
        run=replace(run, options=replace(work.options[4], loss="waveform")),
    )
    return calls(small)


def _chunks(clips: Clips) -> list[torch.Tensor]:
    return [
        torch.from_numpy(mel[..., start : start + _FRAMES])
        for mel in clips.train
        for start in range(0, mel.shape[-1] - _FRAMES, _FRAMES)
    ]
