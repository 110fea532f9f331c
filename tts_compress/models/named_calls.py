"""Components that are called by other names than modules are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NamedCalls"]


@runtime_checkable
class NamedCalls(Protocol):
    """A torch model whose system calls methods of its own on components."""

    def named_calls(self) -> Mapping[str, tuple[str, ...]]:
        """Return these methods by component: dotted names below `root()`, such as `t2s.infer`.

        Each is looked up on its module whenever the model speaks.
        """
