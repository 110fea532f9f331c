"""Recording what a system's components are called with while it speaks, and repeating the calls."""

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from tts_compress.errors import ModelError, QuantizationError, RecipeError, raising
from tts_compress.models.base import (
    Call,
    LanguageModel,
    LatentModel,
    Objective,
    Prompt,
    Speaking,
    TorchModel,
)
from tts_compress.progress import Progress, report_message
from tts_compress.qat.fake_quantize import FakeQuantize
from tts_compress.qat.task import digest_tensors, held_out_indices
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors, intercepted

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
            for done, index in enumerate(indices):
                progress.advance("record", done, len(indices))
                _record_text(speaker, root, recorders, *texts[index])
            progress.advance("record", len(indices), len(indices))
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

    A language model's scores are recorded while it reads its own tokens again, and encoders of
    descriptions while it does so again with the text as description.
    """
    describing = [r for r in recorders if r.objective.encodes == "description"]
    others = [r for r in recorders if r.objective.encodes == "text"]
    reading = [r for r in others if r.objective.reads]
    scoring = [r for r in others if r.objective.loss == "kl"]
    speaking = [r for r in others if r not in reading and r not in scoring]
    if reading:
        _record_reading(model, root, reading, text, seed)
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


def _record_reading(
    model: TorchModel, root: nn.Module, recorders: Sequence["CallRecorder"], text: str, seed: int
) -> None:
    """Make the calls of a language model of latents, along what it spoke."""
    if not isinstance(model, LatentModel):
        raise ModelError(f"models of family {model.family!r} cannot read latents again")
    latents = model.generate_latents(text, seed=seed)
    with _recording(root, recorders):
        model.read_latents(text, latents)


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
        self._most = most
        self._seen = 0
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


def repeatable(module: nn.Module, objective: Objective) -> Callable[..., Any]:
    """Return the method that repeats an objective's calls.

    Some systems put their methods into `torch.inference_mode`, which no gradient leaves; here
    methods are called without their decorators.
    """
    method: Any = module
    if objective.method != "forward":
        method = getattr(module, objective.method)
        undecorated = inspect.unwrap(method)
        if undecorated is not method:
            method = MethodType(undecorated, module)
    changed = dict(objective.repeated)
    return lambda *arguments, **keywords: method(*arguments, **keywords | changed)


def compared_outputs(
    objective: Objective, output: Any, keywords: Mapping[str, Any] | None = None
) -> list[Tensor]:
    """Return the tensors of an output that count, in order."""
    leaves, _ = tree_flatten(output)
    real = [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
    positions = objective.outputs or range(len(real))
    if not real or max(positions) >= len(real):
        raise ModelError(
            f"'{objective.module}.{objective.method}' returned {len(real)} floating-point "
            f"tensors and the objective compares {list(positions) or 'at least one'}"
        )
    if keywords is None or objective.steps_of is None:
        return [real[position] for position in positions]
    steps = keywords[objective.steps_of].shape[-1]
    return [real[position][..., -steps:, :] for position in positions]


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
