"""Taking down what a module is given and answers while its model runs, and asking it again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from tts_compress.errors import ModelError, TTSCompressError
from tts_compress.models.distillation import Call
from tts_compress.models.interception import intercepted

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from tts_compress.models.distillation import Objective

__all__ = ["call_module", "compared_outputs", "record_calls"]


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
    if most < 1:
        raise TTSCompressError(f"{most} calls cannot be recorded; give 1 or more")
    recorder = _Recorder(most=most, seed=seed)
    with intercepted(_module_of(root, objective), objective.method, recorder):
        run(root)
    if not recorder.kept:
        raise ModelError(
            f"'{objective.module}.{objective.method}' was never called while the model ran; "
            "give texts that reach it"
        )
    return [call for _, call in sorted(recorder.kept, key=lambda kept: kept[0])]


def call_module(root: nn.Module, objective: Objective, call: Call) -> Any:
    """Return what a module answers to recorded inputs; gradients flow if they are enabled.

    Raises:
        ModelError: There is no such module or method.
    """
    module = _module_of(root, objective)
    answer = module if objective.method == "forward" else getattr(module, objective.method)
    # A copy each time: what a module changes in place must not reach the next call.
    arguments, keywords = tree_map(_copy, (call.arguments, call.keywords))
    return answer(*arguments, **keywords)


def compared_outputs(objective: Objective, output: Any) -> list[Tensor]:
    """Return the tensors of an output that count, in order.

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
    return [found[position] for position in positions]


class _Recorder:
    """Keeps a uniform sample of the calls it is shown, without knowing how many will come."""

    def __init__(self, *, most: int, seed: int) -> None:
        self.kept: list[tuple[int, Call]] = []
        self._most = most
        self._seen = 0
        self._random = random.Random(seed)  # noqa: S311  no secret

    def __call__(self, answer: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Answer a call, and keep it or not."""
        index, self._seen = self._seen, self._seen + 1
        place = index if index < self._most else self._random.randrange(self._seen)
        if place >= self._most:
            return answer(*arguments, **keywords)
        before = tree_map(_copy, (arguments, keywords))  # a module may change its inputs
        output = answer(*arguments, **keywords)
        call = Call(arguments=before[0], keywords=before[1], output=tree_map(_copy, output))
        self.kept[place : place + 1] = [(index, call)]
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
