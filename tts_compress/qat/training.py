"""Training of modules and systems: make a task, train its student, return the result.

They are trained on calls of their originals, which are recorded and repeated: of a system's
component while it speaks, of any module by batches.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from tts_compress.artifact import TrainingRecord
from tts_compress.errors import ModelError, QuantizationError, RecipeError, raising
from tts_compress.models.base import (
    Call,
    LanguageModel,
    LatentModel,
    Loss,
    Objective,
    Prompt,
    Speaking,
    SteppedLatentModel,
    TorchModel,
)
from tts_compress.progress import ComponentProgress, Progress, counted, report_message
from tts_compress.qat.fake_quantize import ActivationFakeQuantize, FakeQuantize, observing
from tts_compress.qat.options import TrainingRun
from tts_compress.qat.prepare import convert_qat, prepare_qat
from tts_compress.qat.task import (
    Example,
    Outputs,
    TrainingTask,
    compared_outputs,
    digest_tensors,
    held_out_indices,
    is_batched,
    is_repeated,
    objective_terms,
    repeatable,
    target_variances,
)
from tts_compress.qat.trainer import train
from tts_compress.recipes.recipe import Recipe
from tts_compress.torch.convert import Converted
from tts_compress.torch.layers.module_surgery import (
    copy_sharing_tensors,
    copy_with_state,
    intercepted,
)

_MOST_TRAINED, _MOST_HELD_OUT = 128, 32
"""Calls of one component that are kept: the estimator of a diffusion is called for every step of
every text."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedCalls:
    """The calls that one component is trained and judged on."""

    objective: Objective
    train: Sequence[Call]
    held_out: Sequence[Call]


def record_calls(
    model: TorchModel,
    student: nn.Module,
    texts: Sequence[tuple[str, int]],
    *,
    progress: Progress,
) -> list[RecordedCalls]:
    """Return the calls of each rounded component, in the order data flows.

    Texts are held out, not calls: none that is judged on belongs to a text that is trained on.
    """
    if len(texts) < 2:
        raise RecipeError(f"{len(texts)} texts to train on; give 2 or more: one is held out")
    rounded: list[Objective] = []
    for objective in model.objectives():
        parts = _module_of(student, objective).modules()
        if any(isinstance(part, FakeQuantize) for part in parts):
            rounded.append(objective)
        else:
            report_message(progress, f"{objective.name} is not rounded: it is not trained")
    judged = held_out_indices(len(texts))
    recorded: list[RecordedCalls] = []
    if rounded:
        root = copy_sharing_tensors(model.root())

        def record(indices: Sequence[int], most: int) -> list[list[Call]]:
            recorders = [CallRecorder(objective, most=most) for objective in rounded]
            speaker = model.with_root(root, None)  # a new one reads its recording again
            for index in counted(indices, progress, "record", len(indices)):
                _record_text(speaker, root, recorders, *texts[index])
            return [recorder.calls for recorder in recorders]

        train = record([i for i in range(len(texts)) if i not in judged], _MOST_TRAINED)
        held_out = record(judged, _MOST_HELD_OUT)
        for objective, calls, others in zip(rounded, train, held_out, strict=True):
            judged_inputs = set(map(_digest, others))
            new = [call for call in calls if _digest(call) not in judged_inputs]
            if new and others:
                recorded.append(RecordedCalls(objective=objective, train=new, held_out=others))
                continue
            reason = "gets the same inputs for every text" if calls and others else "is not called"
            report_message(progress, f"{objective.name} {reason}: it is rounded without training")
    if not recorded:
        raise QuantizationError(
            "the recipe rounds no component that can be trained; compress the model without "
            "training"
        )
    return recorded


def _record_text(
    model: TorchModel, root: nn.Module, recorders: Sequence["CallRecorder"], text: str, seed: int
) -> None:
    """Make every call that a text causes.

    Language models of tokens are recorded while they read their own tokens again, and encoders of
    descriptions while they do so again with the text as description.
    """
    describing = [r for r in recorders if r.objective.encodes == "description"]
    others = [r for r in recorders if r.objective.encodes == "text"]
    scoring = [r for r in others if r.objective.reads or r.objective.loss == "kl"]
    speaking = [r for r in others if r not in scoring]
    if scoring and isinstance(model, LatentModel):
        latents = model.generate_latents(text, seed=seed)
        read = model.read_at_once if isinstance(model, SteppedLatentModel) else model.read_latents
        with _recording(root, scoring):
            read(text, latents)
        scoring = []
    if not scoring and not describing:
        with _recording(root, speaking):
            model.synthesize(text, seed=seed)
        return
    if not isinstance(model, LanguageModel):
        raise ModelError(
            f"'{(scoring or describing)[0].objective.module}' is recorded while tokens are read, "
            f"but models of family {model.family!r} have none"
        )
    with _recording(root, speaking):
        tokens = model.generate_tokens(text, seed=seed)
    with _recording(root, scoring):
        model.logits(text, tokens)
    if describing:
        described: LanguageModel = model.speaking_as(Speaking(prompt=Prompt(description=text)))
        with _recording(root, describing):
            described.logits(text, tokens)


@contextmanager
def _recording(root: nn.Module, recorders: Sequence["CallRecorder"]) -> Iterator[None]:
    with ExitStack() as stack:
        for recorder in recorders:
            stack.enter_context(recorder.recording(root))
        yield


class CallRecorder:
    """Keeps a uniform sample of an objective's calls (reservoir sampling).

    The first calls alone would be the first steps of a loop and the first texts.
    """

    def __init__(self, objective: Objective, *, most: int, seed: int = 0) -> None:
        self.objective = objective
        self._kept: list[tuple[int, Call]] = []
        self._most, self._seen = most, 0
        self._random = random.Random(seed)  # noqa: S311  no secret

    @property
    def calls(self) -> list[Call]:
        """The calls that were kept, in order."""
        return [call for _, call in sorted(self._kept, key=lambda kept: kept[0])]

    @contextmanager
    def recording(self, root: nn.Module) -> Iterator[None]:
        """Record calls in the block; it may be entered again for more.

        Args:
            root: The module the objective's names are below; restored, also after an error.
        """
        module, method = _module_of(root, self.objective), self.objective.method
        if not callable(getattr(module, method, None)):
            kind = type(module).__name__
            raise ModelError(f"'{self.objective.module}' is a {kind} without a method {method!r}")
        with intercepted(module, method, self):
            yield

    def __call__(self, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Make a call, and keep it or not."""
        index, self._seen = self._seen, self._seen + 1
        slot = index if index < self._most else self._random.randrange(self._seen)
        if slot >= self._most:
            return method(*arguments, **keywords)
        before = tree_map(_copy, (arguments, keywords))  # a module may change its inputs
        output = method(*arguments, **keywords)
        call = Call(arguments=before[0], keywords=before[1], output=tree_map(_copy, output))
        self._kept[slot : slot + 1] = [(index, call)]
        return output


def _module_of(root: nn.Module, objective: Objective) -> nn.Module:
    problem = f"the model has no module '{objective.module}'"
    with raising(ModelError, problem, AttributeError):
        return root.get_submodule(objective.module)


def _digest(call: Call) -> str:
    """Return a hash that calls with the same tensors have in common."""
    leaves = tree_flatten((call.arguments, call.keywords))[0]
    return digest_tensors(leaf for leaf in leaves if isinstance(leaf, Tensor))


def _copy(value: Any) -> Any:
    """Return a detached copy of a tensor on the processor; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    with torch.inference_mode(mode=False):  # tensors made in inference mode never get gradients
        return value.detach().to("cpu", copy=True)


_HINT = (
    "if it draws noise, make that one of its inputs, or seed it in forward; if it keeps something "
    "from call to call, name in the objective's `repeated` what switches that off"
)

_CHUNK_FRAMES = 128
"""One to three seconds: gradients of a whole sentence of samples need too much memory."""

_FRAME_AXES = 3
"""Batch, channels, frames."""


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
    if not (first := _take_apart(inputs[0]))[1]:
        raise RecipeError("a batch holds no tensor; give what the module is called with")
    for number, batch in enumerate(inputs):
        if _take_apart(batch)[0] != first[0]:
            raise RecipeError(
                f"batch {number} and batch 0 differ in more than the values of their tensors; "
                "give all of one structure, with the same other arguments"
            )
    original = copy_with_state(teacher).eval()
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
                if not is_repeated(again, first):
                    raise ModelError(
                        f"{name} returns something else when a call is repeated; {_HINT}"
                    )
            if is_module or objective.loss != "waveform":
                yield whole
            else:
                yield from map(example, _chunks((call.arguments, call.keywords)))

    train, held_out = list(examples(recorded.train)), list(examples(recorded.held_out))
    if is_module and not is_batched(original, [*train, *held_out]):  # each is computed alone then
        train, held_out = ([_without_batch(e) for e in part] for part in (train, held_out))
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


def _without_batch(example: Example) -> Example:
    which, *tensors = example.inputs
    return replace(example, inputs=(which[0], *tensors))


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


def _chunks(inputs: Any) -> Iterator[Any]:
    """Yield arguments and keywords in chunks of frames that cover all of them.

    Tensors `[batch, channels, frames]` of the largest number of frames are cut, all others stay.
    Chunks need no context where the original is called with them, too: at a chunk's ends teacher
    and student get the same silence. The last chunk may begin inside of the one before.
    """
    leaves = filter(_has_frames, tree_flatten(inputs)[0])
    length = max((leaf.shape[-1] for leaf in leaves), default=0)
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
