"""Training a part of an ONNX graph to compute what it did before it was rounded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from tts_compress.artifact import TrainingRecord
from tts_compress.errors import QuantizationError, RecipeError
from tts_compress.numerics.weights import Blocks
from tts_compress.onnx.noise import feed_noise, noise_inputs
from tts_compress.onnx.precision import length_outputs
from tts_compress.onnx.quantize.collect import Calls, record_tensors
from tts_compress.onnx.quantize.convert import Conversion, convert
from tts_compress.onnx.session import open_session, run_session
from tts_compress.qat.graph.network import (
    SPEAKER,
    GraphNetwork,
    Subgraph,
    extract_subgraph,
    find_passage,
    last_part,
    voice_subgraph,
)
from tts_compress.qat.graph.operators import is_trainable
from tts_compress.qat.graph.student import build_student, learned_conversion
from tts_compress.qat.options import TrainingRun
from tts_compress.qat.task import (
    Example,
    Outputs,
    TrainingTask,
    held_out_indices,
    log_mel_loss,
    mse,
    waveform_loss,
)
from tts_compress.qat.trainer import train
from tts_compress.recipes.recipe import Recipe

_SAMPLE_RATE = 22_050
"""Hz; assumed of a bare graph, which does not state it. It only decides the widths of mel bands."""

_SAMPLES_PER_FRAME = 16
"""The fewest that make an output of one channel a waveform."""

_LEAST_DEVIATION = 1e-3
"""Smallest deviation that errors are divided by, for a prior that is hardly more than a point."""

_NOTICEABLE = 1e-5
"""A change of an output by less than this share of its peak does not count."""


def _length(values: Tensor) -> int:
    return values.shape[-1] if values.dim() else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Segments that calls are cut into, in frames of the first input's last axis."""

    frames: int
    """Frames that each segment is for."""

    context: int
    """Further frames on either side: the network's receptive field."""

    @property
    def window(self) -> int:
        """The length of a segment."""
        return self.frames + 2 * self.context

    def core(self, values: Tensor, example: Example) -> Tensor:
        """Return the part of an example's output or target `[…, T]` that has all of its context.

        For a segment that is without both ends; a whole call is complete.
        """
        frames = _length(example.inputs[0])
        if not self.context or frames != self.window:
            return values
        per_frame = values.shape[-1] // frames
        return values[..., self.context * per_frame : (self.context + self.frames) * per_frame]

    def segments(self, call: Example) -> Iterator[Example]:
        """Yield segments of a call, such that every frame with its context is in one.

        Tensors whose last axis is a multiple of the first input's are cut, the others stay whole,
        and so does a call that is no longer than a window.
        """
        frames = _length(call.inputs[0])
        last = frames - self.window
        if last <= 0:
            yield call
            return

        def part(start: int, values: Tensor) -> Tensor:
            length = values.shape[-1] if values.dim() > 1 else 1
            if length % frames or length < frames:
                return values
            per_frame = length // frames
            return values[..., start * per_frame : (start + self.window) * per_frame]

        for start in sorted({*range(0, last, self.frames), last}):
            yield call.each(partial(part, start))


def train_graph(
    conversion: Conversion,
    recipe: Recipe,
    calls: Calls | None,
    *,
    sample_rate: int | None,
    run: TrainingRun,
) -> tuple[Conversion, TrainingRecord]:
    """Return a conversion with trained weights and ranges, and how they were trained."""
    if recipe.calibration is None or calls is None:
        raise RecipeError(
            f"recipe '{recipe.family}-{recipe.scheme}' has no [calibration] table; training "
            "starts from calibrated ranges"
        )
    # One text at a time is all that such graphs promise to take.
    decides = recipe.family != "piper" and length_outputs(conversion.graph, conversion.lengths)
    options = run.options
    alone = sample_rate is None and _takes_one_example(conversion.graph)
    if recipe.family == "contract" or decides or alone:
        updates = options.accumulation * options.batch_size
        options = replace(options, batch_size=1, accumulation=updates)
    # Trained weights are rounded to nearest: codes that were chosen before are for others.
    blocks = {out: codes for out, codes in conversion.chosen.items() if isinstance(codes, Blocks)}
    conversion = replace(conversion, chosen=blocks)
    learned = options.learned_ranges
    task = graph_task(conversion, recipe, calls, sample_rate=sample_rate, learned_ranges=learned)
    record = train(task, replace(run, options=options))
    assert isinstance(task.student, GraphNetwork)
    return learned_conversion(conversion, task.student), record


def _takes_one_example(graph: onnx.ModelProto) -> bool:
    """Return True if an input states that its batch has a size of 1."""
    shapes = [value.type.tensor_type.shape.dim for value in graph.graph.input]
    return any(len(shape) > 1 and shape[0].dim_value == 1 for shape in shapes)


def graph_task(
    conversion: Conversion,
    recipe: Recipe,
    calls: Calls,
    *,
    sample_rate: int | None,
    frames: int = 64,
    learned_ranges: bool = True,
) -> TrainingTask:
    """Return the task of training a voice, or a bare graph, judged by the converted graph.

    In a Piper voice, flow and decoder are trained; everything else is compressed as without
    training, because what it decides, durations above all, is hardly rounded. Of other graphs all
    is trained that lies behind the last operators which torch cannot compute here, or that lengths
    depend on. Where such a voice has its sound made frame by frame behind one tensor, what is
    before that is not trained, so that segments are enough.

    Args:
        conversion: The teacher, prepared; not modified.
        recipe: The recipe it was prepared by.
        calls: The inputs that ranges were observed on; examples are made of them.
        sample_rate: Sample rate of a voice, Hz; None for a bare graph.
        frames: Frames that each segment of a call is for, besides those for context.
        learned_ranges: True to train ranges of activations.
    """
    assert recipe.calibration is not None, "the conversion was calibrated by it"
    besides: list[str] = []
    behind: Subgraph | None = None
    if recipe.family == "piper":
        part, *besides = voice_subgraph(conversion.graph)
    else:
        part, behind = _sound_part(feed_noise(conversion.graph), conversion.lengths)
    targets = [*part.outputs, *besides]
    seen = [*part.inputs, *targets, *(behind.inputs if behind else ())]
    recorded = record_tensors(conversion.graph, list(dict.fromkeys(seen)), calls.feeds())
    if len(recorded) < 2:
        raise QuantizationError(
            f"{len(recorded)} calls to train on; give 2 or more: one is held out"
        )
    graph_inputs = {value.name for value in conversion.graph.graph.input}
    cut: Cut | None = None
    if behind is not None:
        cut = _find_cut(behind, recorded, frames)
        part = part if cut is None else behind
    # Noise drawn for a whole call does not belong to a segment of it, and tensors inside the graph
    # have their time on any axis.
    elif not noise_inputs(part.inputs) and (besides or graph_inputs.issuperset(part.inputs)):
        cut = _find_cut(part, recorded, frames)
    examples = [
        Example(
            inputs=tuple(torch.tensor(values[name]) for name in part.inputs),
            targets=tuple(torch.tensor(values[name]) for name in targets),
        )
        for values in recorded
    ]
    cut = cut or Cut(frames=max(_length(e.inputs[0]) for e in examples), context=0)
    indices = held_out_indices(len(examples))
    judged = [examples[index] for index in indices]
    if SPEAKER in part.inputs:
        # Texts go round the speakers: every eighth may always be the same one's, the last are not.
        judged = examples[-len(indices) :]
    names = ("flow", "decoder") if besides else tuple(part.outputs)
    return TrainingTask(
        student=build_student(
            conversion, part, calibration=recipe.calibration, learned_ranges=learned_ranges
        ),
        train=[s for call in examples if call not in judged for s in cut.segments(call)],
        held_out=[s for call in judged for s in cut.segments(call)],
        loss=partial(_terms, names, cut, sample_rate or _SAMPLE_RATE),
        converted=partial(_converted, conversion, judged[0].inputs),
    )


def _sound_part(model: onnx.ModelProto, ends: frozenset[str]) -> tuple[Subgraph, Subgraph | None]:
    """Return the trainable part of a graph, and its end behind a tensor that everything passes.

    Nothing that lengths depend on is in it: a student of other lengths could not be compared. The
    second part is None where the graph decides no lengths, or there is no such tensor.
    """
    floats = {TensorProto.FLOAT, TensorProto.UNDEFINED}
    outputs = [o.name for o in model.graph.output if o.type.tensor_type.elem_type in floats]
    deciding = length_outputs(model, ends)
    if deciding.issuperset(outputs):  # a predictor of nothing else
        deciding = frozenset()
    outputs = [name for name in outputs if name not in deciding]

    def fits(node: onnx.NodeProto) -> bool:
        free = node.op_type == "Constant" or deciding.isdisjoint(node.output)
        return free and is_trainable(node)

    part = last_part(model, fits, outputs)
    passage = find_passage(part) if deciding and len(outputs) == 1 else None
    return part, None if passage is None else extract_subgraph(model, [passage], outputs)


def _find_cut(part: Subgraph, recorded: Sequence[Mapping[str, Any]], frames: int) -> Cut | None:
    """Return segments for a part of a graph; None where it needs whole calls."""
    longest = max(recorded, key=lambda values: values[part.inputs[0]].shape[-1:])
    inputs = tuple(torch.tensor(longest[name]) for name in part.inputs)
    if not inputs[0].is_floating_point() or inputs[0].dim() < 2:
        return None
    context = _receptive_field(GraphNetwork(part), inputs)
    return None if context is None else Cut(frames=frames, context=context)


def _terms(
    names: Sequence[str], cut: Cut, sample_rate: int, outputs: Outputs, example: Example
) -> dict[str, Tensor]:
    """Return the terms of the loss by name.

    A waveform is compared by its samples, its spectra and its mel spectrum; anything else by
    squared difference in units of the prior's deviation, or of the target's own.
    """
    terms: dict[str, Tensor] = {}
    targets = [cut.core(target, example) for target in example.targets]
    for name, output, teacher in zip(names, outputs, targets, strict=False):
        student = cut.core(output, example)
        channels, frames = output.shape[1:-1].numel(), _length(example.inputs[0])
        if channels == 1 and output.shape[-1] >= _SAMPLES_PER_FRAME * frames:
            terms[name] = waveform_loss(student, teacher)
            terms[f"{name} log-mel"] = log_mel_loss(student, teacher, sample_rate=sample_rate)
            continue
        if len(targets) > len(names):  # examples of a voice have the deviation besides
            unit = targets[-1].clamp_min(_LEAST_DEVIATION)
        else:
            unit = teacher.std().clamp_min(torch.finfo(teacher.dtype).tiny)
        terms[name] = mse(student / unit, teacher / unit)
    return terms


def _converted(
    conversion: Conversion, inputs: tuple[Tensor, ...], student: GraphNetwork
) -> Callable[..., Outputs]:
    """Return the function that a student's part of the finished graph computes.

    That graph is what will be saved, run by onnxruntime.
    """
    finished = feed_noise(convert(learned_conversion(conversion, student)))
    part = extract_subgraph(finished, student.inputs, student.outputs).model
    for value, tensor in zip(part.graph.input, inputs, strict=True):
        kind = helper.np_dtype_to_tensor_dtype(tensor.numpy().dtype)
        value.type.tensor_type.elem_type = kind
    session = open_session(part, "the converted graph", torch.get_num_threads())

    def compute(*values: Tensor) -> Outputs:
        arrays = (value.cpu().numpy() for value in values)
        feeds = dict(zip(student.inputs, arrays, strict=True))
        outputs = run_session(session, feeds, "the converted graph")
        return tuple(torch.from_numpy(output).to(values[0].device) for output in outputs)

    return compute


def _receptive_field(network: nn.Module, inputs: tuple[Tensor, ...]) -> int | None:
    """Return the number of frames before and behind a frame that a network computes it from.

    The frame in the middle of a long call is changed; its outputs show how far that reaches. None
    where they do not follow the first input `(B, C, T)` in time, or depend on all of it.
    """
    frames = inputs[0].shape[-1]
    middle = frames // 2
    changed = inputs[0].clone()
    changed[..., middle] += changed.std() + 1
    with torch.no_grad():
        before, after = network(*inputs), network(changed, *inputs[1:])
    field = 0
    for output, other in zip(before, after, strict=True):
        if output.dim() < 2 or output.shape[-1] % frames or output.shape != other.shape:
            return None
        difference = (output - other).abs().flatten(0, -2).amax(0)
        reached = (difference > _NOTICEABLE * output.abs().amax()).nonzero().flatten()
        if reached.numel():
            first, last = (int(at) * frames // output.shape[-1] for at in reached[[0, -1]])
            field = max(field, middle - first, last - middle)
    return None if field >= middle - 1 else field + 1
