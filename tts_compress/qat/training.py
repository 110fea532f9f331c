"""Training of graphs, modules and systems: make a task, train its student, return the result.

Modules are trained on calls of their originals: a system's component, or any module by batches.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from tts_compress.artifact import TrainingRecord
from tts_compress.errors import ModelError, RecipeError
from tts_compress.models.base import Call, Loss, Objective, TorchModel
from tts_compress.numerics.weights import Blocks
from tts_compress.onnx.precision import length_outputs
from tts_compress.onnx.quantize.collect import Calls
from tts_compress.onnx.quantize.convert import Conversion
from tts_compress.progress import ComponentProgress
from tts_compress.qat.fake_quantize import ActivationFakeQuantize, observing
from tts_compress.qat.graph.network import GraphNetwork
from tts_compress.qat.graph.student import learned_conversion
from tts_compress.qat.graph.task import graph_task
from tts_compress.qat.options import TrainingRun
from tts_compress.qat.prepare import convert_qat, prepare_qat
from tts_compress.qat.recorded_calls import (
    RecordedCalls,
    compared_outputs,
    record_calls,
    repeatable,
)
from tts_compress.qat.task import Example, Outputs, TrainingTask, objective_terms, target_variances
from tts_compress.qat.trainer import train
from tts_compress.recipes.recipe import Recipe
from tts_compress.torch.convert import Converted
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

_MAX_ERROR = 1e-8
"""Largest error of a repeated output: power of its difference from the recorded one, over the
power of that. It is not zero because torch adds up in another order where noise is chosen, or in
inference mode; at 80 dB it is still far below the effect of rounding."""

_HINT = (
    "if it draws noise, make that one of its inputs, or seed it in forward; if it keeps something "
    "from call to call, name in the objective's `repeated` what switches that off"
)

_CHUNK_FRAMES = 128
"""One to three seconds: gradients of a whole sentence of samples need too much memory."""

_FRAME_AXES = 3
"""Batch, channels, frames."""


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
    # What is trained is rounded to nearest: codes chosen before are not those of what it becomes.
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


def train_module(
    module: nn.Module,
    recipe: Recipe,
    batches: Iterable[Any],
    *,
    run: TrainingRun,
) -> nn.Module:
    """Return a compressed and trained copy of any module."""
    options = run.options
    prepared = prepare_qat(module, recipe, learned_ranges=options.learned_ranges)
    loss = options.loss or "mse"
    task = module_task(module, prepared.module, list(batches), loss=loss, seed=options.seed)
    train(task, run)
    return convert_qat(prepared).root


def train_system(
    model: TorchModel,
    recipe: Recipe,
    texts: Sequence[tuple[str, int]],
    speak: Callable[[nn.Module], None],
    *,
    run: TrainingRun,
) -> tuple[Converted, TrainingRecord]:
    """Return a system's components, compressed and trained one after the other, and how."""
    prepared = prepare_qat(model.root(), recipe, learned_ranges=run.options.learned_ranges)
    student = prepared.module
    recorded = record_calls(model, student, texts, progress=run.progress)
    # Ranges are observed in the whole model's speech, also of parts that are not trained.
    if any(isinstance(part, ActivationFakeQuantize) for part in student.modules()):
        with observing(student):
            speak(student)
    records: dict[str, TrainingRecord] = {}
    for calls in recorded:
        name, component = calls.objective.name, student.get_submodule(calls.objective.module)
        task = call_task(calls, model.root(), component, sample_rate=model.sample_rate)
        folder = run.folder / name if run.folder else None
        progress = ComponentProgress(name, run.progress)
        records[name] = train(task, replace(run, folder=folder, progress=progress))
    return convert_qat(prepared), TrainingRecord(
        steps=sum(record.steps for record in records.values()),
        seed=run.options.seed,
        before={f"{n}/{term}": v for n, r in records.items() for term, v in r.before.items()},
        after={f"{n}/{term}": v for n, r in records.items() for term, v in r.after.items()},
    )


def module_task(
    teacher: nn.Module,
    student: nn.Module,
    batches: Sequence[Any],
    *,
    loss: Loss = "mse",
    held_out: float = 0.1,
    seed: int = 0,
) -> TrainingTask:
    """Return the task of training a module on batches of its inputs.

    Args:
        teacher: In FP32; not modified. It has to return the same for the same inputs: noise is an
            input, or seeded.
        student: The module that `prepare_qat` made of it.
        batches: Inputs of the module, each a tensor, a tuple of arguments or a dictionary
            of them; all of one structure, and at least two.
        loss: Loss that compares all its outputs, as in an `Objective`.
        held_out: Share of the batches that is only judged on; at least one is, and one is not.
        seed: Chooses which.
    """
    if len(batches) < 2:
        raise RecipeError(f"{len(batches)} batches to train on; give 2 or more: one is held out")
    inputs = [tree_map(_cloned, _as_call(batch)) for batch in batches]
    first, tensors = _take_apart(inputs[0])
    if not tensors:
        raise RecipeError("a batch holds no tensor; give what the module is called with")
    for number, batch in enumerate(inputs):
        if _take_apart(batch)[0] != first:
            raise RecipeError(
                f"batch {number} and batch 0 differ in more than the values of their tensors; "
                "give all of one structure, with the same other arguments"
            )
    original = copy_sharing_tensors(teacher).eval()
    calls = []
    for arguments, keywords in inputs:
        copies = tree_map(_cloned, (arguments, keywords))  # it may change its inputs
        with torch.no_grad():
            output = original(*copies[0], **copies[1])
        calls.append(Call(arguments=arguments, keywords=keywords, output=output))
    count = min(max(round(len(calls) * held_out), 1), len(calls) - 1)
    chosen = set(random.Random(seed).sample(range(len(calls)), count))  # noqa: S311  no secret
    recorded = RecordedCalls(
        objective=Objective(module="", loss=loss),
        train=[call for i, call in enumerate(calls) if i not in chosen],
        held_out=[calls[i] for i in sorted(chosen)],
    )
    return call_task(recorded, original, student)


def call_task(
    recorded: RecordedCalls,
    teacher: nn.Module,
    student: nn.Module,
    *,
    sample_rate: int | None = None,
) -> TrainingTask:
    """Return the task of training a module on calls that were recorded of its original.

    Args:
        recorded: The calls.
        teacher: The root in FP32 that the objective's names are below; not modified.
        student: The module with fake-quantized layers.
        sample_rate: Sample rate of a system, Hz. Calls of its components are examples one by one,
            because their first axis need not be a batch, and those that return samples are cut into
            chunks. None for a module that is called with batches.
    """
    objective = recorded.objective
    is_module = sample_rate is None
    signatures: list[_Signature] = []
    original = _Replayed(teacher.get_submodule(objective.module), objective, signatures)
    name = f"'{objective.name}'" if objective.name else "the module"

    @torch.no_grad()
    def example(inputs: Any) -> Example:
        signature, tensors = _take_apart(inputs)
        if signature not in signatures:
            signatures.append(signature)
        which = signatures.index(signature)
        repeated = (torch.tensor([which] if is_module else which), *tensors)
        try:
            targets = original(*repeated)
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            raise ModelError(f"{name} fails when a call is repeated ({error}); {_HINT}") from error
        return Example(inputs=repeated, targets=tuple(target.clone() for target in targets))

    def examples(calls: Sequence[Call]) -> Iterator[Example]:
        for call in calls:
            whole = example((call.arguments, call.keywords))
            recorded_outputs = compared_outputs(objective, call.output, call.keywords)
            for again, first in zip(whole.targets, recorded_outputs, strict=True):
                if again.shape != first.shape or _relative_error(again, first) > _MAX_ERROR:
                    raise ModelError(
                        f"{name} returns something else when a call is repeated; {_HINT}"
                    )
            if is_module or objective.loss != "waveform":
                yield whole
            else:
                yield from map(example, _chunks((call.arguments, call.keywords)))

    train, held_out = list(examples(recorded.train)), list(examples(recorded.held_out))
    variances = target_variances(train) if objective.loss == "mse" else []

    def loss(outputs: Outputs, example: Example) -> dict[str, Tensor]:
        terms = objective_terms(objective, outputs, example.targets, variances, sample_rate)
        return {f"output/{kind}" if is_module else kind: term for kind, term in terms.items()}

    return TrainingTask(
        student=_Replayed(student, objective, signatures),
        train=train,
        held_out=held_out,
        loss=loss,
    )


@dataclass(frozen=True, slots=True)
class _Signature:
    """The arguments of a call without the values of its tensors."""

    spec: TreeSpec
    leaves: tuple[Any, ...]
    """Leaves of the arguments; `Tensor` in the places of tensors."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Signature":
        return self  # immutable; copying a tree's structure warns


def _take_apart(inputs: Any) -> tuple[_Signature, tuple[Tensor, ...]]:
    """Return the signature of arguments and keywords, and their tensors."""
    leaves, spec = tree_flatten(inputs)
    others = tuple(Tensor if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return _Signature(spec, others), tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))


class _Replayed(nn.Module):
    """A module that repeats calls, given by their tensors alone."""

    def __init__(
        self, module: nn.Module, objective: Objective, signatures: Sequence[_Signature]
    ) -> None:
        super().__init__()
        self.module = module
        self._objective = objective
        self._signatures = signatures

    def forward(self, which: Tensor, *tensors: Tensor) -> Outputs:
        """Return the compared tensors of a call.

        Args:
            which: Index of the call's signature, int64; for joined calls, which share it, of each.
            tensors: Tensors of the call; not modified, whatever the module does to its inputs.
        """
        signature = self._signatures[int(which.reshape(-1)[0])]
        copies = (tensor.clone() for tensor in tensors)
        leaves = [next(copies) if leaf is Tensor else leaf for leaf in signature.leaves]
        arguments, keywords = tree_unflatten(leaves, signature.spec)
        output = repeatable(self.module, self._objective)(*arguments, **keywords)
        return tuple(compared_outputs(self._objective, output, keywords))


def _as_call(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments and keywords."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


def _cloned(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _relative_error(again: Tensor, first: Tensor) -> float:
    """Return the power of the difference over that of the first."""
    if torch.equal(again, first):
        return 0.0
    # Scores of tokens that are ruled out are infinite on both sides.
    difference = torch.where(again == first, 0.0, again.double() - first.double())
    power = torch.where(first.isfinite(), first, 0.0).double().square().sum()
    return float(difference.square().sum() / power) if power > 0 else float("inf")


def _chunks(inputs: Any) -> Iterator[Any]:
    """Yield arguments and keywords in chunks of frames that cover all of them.

    Tensors `[batch, channels, frames]` of the largest number of frames are cut, all others stay.
    Chunks need no context where the original is called with them, too: at a chunk's ends teacher
    and student get the same silence. The last chunk may begin inside of the one before.
    """
    lengths = [leaf.shape[-1] for leaf in tree_flatten(inputs)[0] if _has_frames(leaf)]
    length = max(lengths, default=0)
    if length <= _CHUNK_FRAMES:
        yield inputs
        return
    for start in (*range(0, length - _CHUNK_FRAMES, _CHUNK_FRAMES), length - _CHUNK_FRAMES):

        def cut(leaf: Any, start: int = start) -> Any:
            if not _has_frames(leaf) or leaf.shape[-1] != length:
                return leaf
            return leaf[..., start : start + _CHUNK_FRAMES].clone()

        yield tree_map(cut, inputs)


def _has_frames(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() == _FRAME_AXES
