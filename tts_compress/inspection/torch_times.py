"""How long the components of a torch model take while it speaks."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tts_compress.models.interception import intercepted
from tts_compress.models.named_calls import NamedCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from tts_compress.models.base import TorchModel

__all__ = ["torch_seconds"]

_LEVELS = 2
"""Of a component's parts that are watched too: some systems call methods of a component that have
no hooks, and these call its parts."""


def torch_seconds(model: TorchModel, text: str, seed: int) -> dict[str | None, float]:
    """Return the seconds that each component takes to speak a text.

    A call within a call counts for the inner component alone.

    Args:
        model: Its modules are left as they were.
        text: Spoken twice; only the second time counts, with nothing left to load or to prepare.
        seed: Of the noise.

    Returns:
        By component; under None what is outside all of them.

    Raises:
        TextError: The text cannot be spoken.
        ModelError: The model cannot speak.
    """
    model.synthesize(text, seed=seed)
    clock = _Clock()
    root = model.root()
    with ExitStack() as stack:
        for component, module, method in _calls(model, root):
            stack.enter_context(intercepted(module, method, clock.timing(component)))
        with clock:
            model.synthesize(text, seed=seed)
    return dict(clock.seconds)


def _calls(model: TorchModel, root: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield component, module and method of what is timed."""
    owners: dict[nn.Module, str] = {}
    for name in sorted(model.components(), key=len):  # what lies in another comes after it
        owners |= dict.fromkeys(_watched(root.get_submodule(name), _LEVELS), name)
    for module, name in owners.items():
        yield name, module, "forward"
    if isinstance(model, NamedCalls):
        for name, methods in model.named_calls().items():
            for method in methods:
                place, _, own = method.rpartition(".")
                yield name, root.get_submodule(place), own


def _watched(module: nn.Module, levels: int) -> Iterator[nn.Module]:
    from torch import nn

    # Lists of modules are never called, their items are.
    inside = levels if isinstance(module, nn.ModuleList | nn.ModuleDict) else levels - 1
    if inside != levels:
        yield module
    if levels:
        for child in module.children():
            yield from _watched(child, inside)


class _Clock:
    """Gives each moment to the component that was entered last; a context manager."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str | None, float] = defaultdict(float)
        self._inside: list[str | None] = []
        self._since = 0.0

    def __enter__(self) -> _Clock:
        self._turn()
        self._inside.append(None)
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def timing(self, component: str) -> Callable[..., Any]:
        """Return what answers calls that count for a component."""

        def answer(method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
            self._turn()
            self._inside.append(component)
            try:
                return method(*arguments, **keywords)
            finally:
                self._leave()

        return answer

    def _leave(self) -> None:
        self._turn()
        self._inside.pop()

    def _turn(self) -> None:
        """Give the time since the last turn to whom it belongs."""
        now = perf_counter()
        if self._inside:
            self.seconds[self._inside[-1]] += now - self._since
        self._since = now
