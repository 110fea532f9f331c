"""Training a part of an ONNX graph to answer as it did before it was rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from tts_compress.errors import QuantizationError
from tts_compress.onnx.noise import feed_noise, noise_inputs
from tts_compress.qat.graph.borders import find_borders
from tts_compress.qat.graph.network import GraphNetwork
from tts_compress.qat.graph.part import cut_graph
from tts_compress.qat.graph.recording import record_tensors
from tts_compress.qat.graph.rounded import rounded_network
from tts_compress.qat.graph.segments import Cut, Segments, measure_reach
from tts_compress.qat.losses import log_mel_loss, mse, waveform_loss
from tts_compress.qat.task import Example

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tts_compress.onnx.quantize.collect import Calls
    from tts_compress.onnx.quantize.convert import Conversion
    from tts_compress.qat.graph.part import GraphPart
    from tts_compress.recipes.recipe import Recipe

__all__ = ["GraphTask", "GraphTaskSettings", "Term", "open_graph_task"]

_SAMPLE_RATE = 22_050
"""Hz; assumed of a bare graph, which tells none. Only the widths of mel bands hang on it."""

_TRAINED_PARTS = {"piper": find_borders}
"""Finds the part of a voice's graph that is trained, by family; of any other graph all is."""

_SAMPLES_PER_FRAME = 16
"""From as many values per frame on an output of one channel is a waveform."""

_LEAST_DEVIATION = 1e-3
"""Of a prior that is hardly more than a point: nothing is worth infinitely much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTaskSettings:
    """How examples are made of recorded calls.

    Raises:
        QuantizationError: A number is not positive.
    """

    frames: int = 64
    """Frames that each segment is for; it has more around them, for context."""

    held_out: int = 8
    """Of so many calls one is held out; at least one is."""

    learned_ranges: bool = True
    """Whether ranges of activations go on by gradients. They are few, and decide more than weights
    do: give them a learning rate of their own, about a thousand times as high."""

    def __post_init__(self) -> None:
        for name, value in (("frames", self.frames), ("held_out", self.held_out)):
            if value < 1:
                raise QuantizationError(f"{name} is {value}; give 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """How one output is compared with the teacher's."""

    name: str
    output: int
    """Position among the outputs, and among the targets."""

    kind: Literal["mse", "waveform"]
    """A `waveform` is compared by its samples, its spectra and its mel spectrum."""

    deviation: int | None = None
    """Position among the targets of what differences count in units of; None for the deviation of
    the target itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphTask:
    """A part of a graph as a student, and the calls that its teacher answered; see `Task`."""

    conversion: Conversion
    """The teacher, prepared."""

    student: GraphNetwork
    terms: tuple[Term, ...]
    cut: Cut
    train: Sequence[Example]
    held_out: Sequence[Example]
    sample_rate: int

    def train_examples(self) -> Sequence[Example]:
        """Return segments of the calls that were not held out."""
        return self.train

    def held_out_examples(self) -> Sequence[Example]:
        """Return segments of those that were."""
        return self.held_out

    def loss(self, outputs: tuple[Tensor, ...], example: Example) -> dict[str, Tensor]:
        """Return the terms of the loss by name."""
        found: dict[str, Tensor] = {}
        for term in self.terms:
            student = self.cut.core(outputs[term.output], example)
            teacher = self.cut.core(example.targets[term.output], example)
            if term.kind == "mse":
                unit = _unit(self.cut, term, teacher, example)
                found[term.name] = mse(student / unit, teacher / unit)
            else:
                found[term.name] = waveform_loss(student, teacher)
                mel = log_mel_loss(student, teacher, sample_rate=self.sample_rate)
                found[f"{term.name} log-mel"] = mel
        return found


def open_graph_task(
    conversion: Conversion,
    recipe: Recipe,
    calls: Calls,
    *,
    sample_rate: int | None,
    settings: GraphTaskSettings | None = None,
) -> GraphTask:
    """Return what a voice, or a bare graph, is trained on.

    Of a voice flow and decoder are trained; everything else is compressed as without training,
    because what it decides, durations above all, is hardly rounded. Of a bare graph everything is.

    Args:
        conversion: The teacher, prepared; not modified.
        recipe: The recipe it was prepared by.
        calls: The inputs that ranges were observed on; examples are made of them.
        sample_rate: Of a voice, Hz; None for a bare graph.
        settings: How examples are made.

    Raises:
        QuantizationError: The recipe rounds nothing in the part that is trained, or there are too
            few calls to hold one out.
    """
    settings = settings or GraphTaskSettings()
    assert recipe.calibration is not None, "the conversion was calibrated by it"
    find = _TRAINED_PARTS.get(recipe.family)
    if find is not None:
        borders = find(conversion.graph)
        part = cut_graph(conversion.graph, borders.inputs, (borders.latent, borders.audio))
        besides: tuple[str, ...] = (borders.deviation,)
    else:
        part, besides = cut_graph(feed_noise(conversion.graph)), ()
    examples = _examples(conversion, part, besides, calls)
    if len(examples) < 2:
        raise QuantizationError(
            "one call is not enough to learn from, because one is held out to judge by; "
            "give two or more"
        )
    cut = _cut(part, examples, settings)
    last = len(examples) - 1
    judged = set(range(settings.held_out - 1, len(examples), settings.held_out)) or {last}
    return GraphTask(
        conversion=conversion,
        student=rounded_network(
            conversion,
            part,
            calibration=recipe.calibration,
            learned_ranges=settings.learned_ranges,
        ),
        terms=_terms(part, examples[0], voice=bool(besides)),
        cut=cut,
        train=Segments([c for i, c in enumerate(examples) if i not in judged], cut),
        held_out=Segments([c for i, c in enumerate(examples) if i in judged], cut),
        sample_rate=sample_rate or _SAMPLE_RATE,
    )


def _examples(
    conversion: Conversion, part: GraphPart, besides: tuple[str, ...], calls: Calls
) -> list[Example]:
    """Return every call whole, with what the teacher answered, and tensors besides."""
    answers = (*part.outputs, *besides)
    names = tuple(dict.fromkeys((*part.inputs, *answers)))
    recorded = record_tensors(conversion.graph, names, calls.feeds())
    return [
        Example(
            inputs=tuple(torch.tensor(values[name]) for name in part.inputs),
            targets=tuple(torch.tensor(values[name]) for name in answers),
        )
        for values in recorded
    ]


def _cut(part: GraphPart, calls: list[Example], settings: GraphTaskSettings) -> Cut:
    longest = max(calls, key=lambda call: call.inputs[0].shape[-1])
    reach = None
    # What is drawn for a whole call does not belong to a segment of it.
    if not noise_inputs(list(part.inputs)) and longest.inputs[0].is_floating_point():
        reach = measure_reach(GraphNetwork(part), longest.inputs)
    whole = longest.inputs[0].shape[-1]
    return Cut(frames=whole, reach=0) if reach is None else Cut(frames=settings.frames, reach=reach)


def _terms(part: GraphPart, call: Example, *, voice: bool) -> tuple[Term, ...]:
    if voice:
        latent = Term(name="flow", output=0, kind="mse", deviation=2)
        return latent, Term(name="decoder", output=1, kind="waveform")
    frames = call.inputs[0].shape[-1]
    return tuple(
        Term(name=name, output=i, kind="waveform" if _is_waveform(target, frames) else "mse")
        for i, (name, target) in enumerate(zip(part.outputs, call.targets, strict=True))
    )


def _is_waveform(target: Tensor, frames: int) -> bool:
    channels = target.shape[1:-1].numel()
    return channels == 1 and target.shape[-1] >= _SAMPLES_PER_FRAME * frames


def _unit(cut: Cut, term: Term, teacher: Tensor, example: Example) -> Tensor:
    """Return what a difference of one counts as."""
    if term.deviation is None:
        return teacher.std().clamp_min(torch.finfo(teacher.dtype).tiny)
    return cut.core(example.targets[term.deviation], example).clamp_min(_LEAST_DEVIATION)
