"""Taking down what a module is given and answers while its model runs, and asking it again."""

from __future__ import annotations

import inspect
import random
from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from tts_compress.errors import ModelError, TTSCompressError
from tts_compress.models.distillation import Call
from tts_compress.models.interception import intercepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor, nn

    from tts_compress.models.distillation import Objective

__all__ = ["CallRecorder", "answering", "call_module", "compared_outputs", "record_calls"]


def record_calls(
    root: nn.Module,
    objective: Objective,
    run: Callable[[nn.Module], object],
    *,
    most: int,
    seed: int = 0,
) -> list[Call]:
    """Return calls of a module while the model runs, in order.

    Args:
        root: What the objective's names are below; left as it was, also when `run` fails.
        objective: Names the module and its method.
        run: Runs the model that `root` belongs to.
        most: Of more calls than this a sample is kept in which each call is equally probable:
            the first ones would be the first steps of a loop and the first texts.
        seed: Chooses the sample.

    Raises:
        ModelError: There is no such module or method, or it was never called.
        TTSCompressError: `most` is not positive.
    """
    recorder = CallRecorder(most=most, seed=seed)
    with recorder.listening(root, objective):
        run(root)
    if not recorder.calls:
        raise ModelError(
            f"'{objective.module}.{objective.method}' was never called while the model ran; "
            "give texts that reach it"
        )
    return recorder.calls


def call_module(root: nn.Module, objective: Objective, call: Call) -> Any:
    """Return what a module answers to recorded inputs; gradients flow if they are enabled.

    Raises:
        ModelError: There is no such module or method.
    """
    answer = answering(_module_of(root, objective), objective)
    # A copy each time: what a module changes in place must not reach the next call.
    arguments, keywords = tree_map(_copy, (call.arguments, call.keywords))
    return answer(*arguments, **keywords)


def answering(module: nn.Module, objective: Objective) -> Callable[..., Any]:
    """Return what answers an objective's calls when they are repeated.

    Some systems put their methods into `torch.inference_mode`, which no gradient leaves; here
    methods are called without their decorators.

    Args:
        module: The one that the objective names, or a copy of it.
        objective: Names the method, and keywords that are not as they were recorded.
    """
    answer: Any = module
    if objective.method != "forward":
        answer = getattr(module, objective.method)
        undecorated = inspect.unwrap(answer)
        if undecorated is not answer:
            answer = MethodType(undecorated, module)
    changed = dict(objective.repeated)
    return lambda *arguments, **keywords: answer(*arguments, **keywords | changed)


def compared_outputs(
    objective: Objective, output: Any, keywords: Mapping[str, Any] | None = None
) -> list[Tensor]:
    """Return the tensors of an output that count, in order.

    Args:
        objective: Says which do.
        output: What the module returned.
        keywords: What it was given by name, which says how many steps count; None for all.

    Raises:
        ModelError: The output has no such tensors.
    """
    leaves, _ = tree_flatten(output)
    found = [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]
    positions = objective.outputs or range(len(found))
    if not found or max(positions) >= len(found):
        raise ModelError(
            f"'{objective.module}.{objective.method}' returned {len(found)} floating-point "
            f"tensors and the objective compares {list(positions) or 'at least one'}"
        )
    if keywords is None or objective.steps_of is None:
        return [found[position] for position in positions]
    steps = keywords[objective.steps_of].shape[-1]
    return [found[position][..., -steps:, :] for position in positions]


class CallRecorder:
    """Keeps a uniform sample of the calls it is shown, without knowing how many will come.

    Args:
        most: How many are kept.
        seed: Chooses the sample.

    Raises:
        TTSCompressError: `most` is not positive.
    """

    def __init__(self, *, most: int, seed: int = 0) -> None:
        if most < 1:
            raise TTSCompressError(f"{most} calls cannot be recorded; give 1 or more")
        self._kept: list[tuple[int, Call]] = []
        self._most = most
        self._seen = 0
        self._random = random.Random(seed)  # noqa: S311  no secret

    @property
    def calls(self) -> list[Call]:
        """The calls that were kept, in order."""
        return [call for _, call in sorted(self._kept, key=lambda kept: kept[0])]

    @contextmanager
    def listening(self, root: nn.Module, objective: Objective) -> Iterator[None]:
        """Take down an objective's calls in the block; it may be entered again for more.

        Args:
            root: What the objective's names are below; left as it was, also after an error.
            objective: Names the module and its method.

        Raises:
            ModelError: There is no such module or method.
        """
        with intercepted(_module_of(root, objective), objective.method, self):
            yield

    def __call__(self, answer: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Answer a call, and keep it or not."""
        index, self._seen = self._seen, self._seen + 1
        place = index if index < self._most else self._random.randrange(self._seen)
        if place >= self._most:
            return answer(*arguments, **keywords)
        before = tree_map(_copy, (arguments, keywords))  # a module may change its inputs
        output = answer(*arguments, **keywords)
        call = Call(arguments=before[0], keywords=before[1], output=tree_map(_copy, output))
        self._kept[place : place + 1] = [(index, call)]
        return output


def _module_of(root: nn.Module, objective: Objective) -> nn.Module:
    try:
        module = root.get_submodule(objective.module)
    except AttributeError as error:
        raise ModelError(f"the model has no module '{objective.module}': {error}") from error
    if not callable(getattr(module, objective.method, None)):
        kind = type(module).__name__
        raise ModelError(f"'{objective.module}' is a {kind} without a method {objective.method!r}")
    return module


def _copy(value: Any) -> Any:
    """Return a detached copy of a tensor on the processor; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    with torch.inference_mode(mode=False):  # what is made in inference mode has no gradients ever
        return value.detach().to("cpu", copy=True)
