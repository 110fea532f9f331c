"""Other ways to run a torch model: without fused attention, or compiled.

The official code of the torch families calls torch's fused attention and compiles nothing; that is
the runtime that reports call the default. `plain-attention` has torch compute scores, softmax and
sums one after the other in place of the fused kernel. `compile` has torch.compile translate the
blocks that the heavy component consists of; one block at a time, because they are all alike and
are translated once.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tts_compress.errors import EvaluationError
from tts_compress.families import families
from tts_compress.models.base import TorchModel
from tts_compress.models.language_model import LanguageModel
from tts_compress.torch.layers.integer import IntegerLayer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tts_compress.models.base import TTSModel

__all__ = ["RuntimeSwitch", "compiled_graphs", "find_blocks"]


class RuntimeSwitch:
    """Runs the opened runtime of a model in one way or another.

    It works on the live modules, which the runtime shares: for a process of its own.

    Args:
        model: A torch model.
    """

    def __init__(self, model: TTSModel) -> None:
        assert isinstance(model, TorchModel), "checked before any process is started"
        heavy = families()[model.family].heavy
        assert heavy is not None, "a family in torch names it"
        self._blocks = find_blocks(model.root().get_submodule(heavy))
        # Language models count steps in a module: every count would be compiled for itself.
        self._keeps_count = isinstance(model, LanguageModel)
        self._compiled: list[Callable[..., Any]] = []
        self._stack = ExitStack()

    def choose(self, name: str | None) -> None:
        """Run in the way of that name from now on; None is the default."""
        self._stack.close()
        match name:
            case None:
                return
            case "plain-attention":
                self._stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            case "compile":
                self._compile()
            case _:
                raise EvaluationError(f"no way to run a model is named {name!r}")

    def _compile(self) -> None:
        if not self._compiled:
            _prepare(self._blocks, keeps_count=self._keeps_count)
            self._compiled = [
                torch.compile(block._call_impl, dynamic=True)  # noqa: SLF001  as `Module.compile` does
                for block in self._blocks
            ]
        for block, compiled in zip(self._blocks, self._compiled, strict=True):
            # What `Module.compile` sets; unlike it, this can be taken back between two runs.
            block._compiled_call_impl = compiled  # noqa: SLF001
            self._stack.callback(setattr, block, "_compiled_call_impl", None)


def find_blocks(component: nn.Module) -> list[nn.Module]:
    """Return the equal blocks that a component consists of: of its lists, the largest one's items.

    Raises:
        EvaluationError: It has no list of modules.
    """
    lists: list[nn.ModuleList] = [
        part for part in component.modules() if isinstance(part, nn.ModuleList) and len(part)
    ]
    if not lists:
        raise EvaluationError(f"{type(component).__name__} has no blocks that could be compiled")
    # The outermost of nested lists has the most modules.
    largest = max(lists, key=_module_count)
    return list(largest.children())


def _module_count(part: nn.Module) -> int:
    return len(list(part.modules()))


def compiled_graphs() -> int:
    """Return how many pieces of code torch.compile has translated in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _prepare(blocks: list[nn.Module], *, keeps_count: bool) -> None:
    """Have the compiler pass over kernels that it cannot look into, and say what it gives up on."""
    from torch._dynamo import config

    # Otherwise what it gave up on would run uncompiled, under the compiled one's name.
    config.fail_on_recompile_limit_hit = True
    config.allow_unspec_int_on_nn_module = keeps_count
    # Blocks with a number of their own, by which they find their cache, are translated each.
    config.recompile_limit *= len(blocks)
    config.accumulated_recompile_limit *= len(blocks)
    for block in blocks:
        for part in block.modules():
            if isinstance(part, IntegerLayer):
                disable: Any = torch.compiler.disable
                part.forward = disable(part.forward)
