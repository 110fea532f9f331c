"""Interception of calls."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def intercepted(module: Any, method: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of a torch module, or a function of another object, in the block.

    Args:
        module: Left as it was, also after an error.
        method: `forward` stands for calls of a torch module itself.
        replacement: Is given the original method, then what it was called with.
    """
    before = vars(module).get(method)
    original = getattr(module, method)

    def intercept(*arguments: Any, **keywords: Any) -> Any:
        return replacement(original, *arguments, **keywords)

    setattr(module, method, intercept)
    try:
        yield
    finally:
        if before is None:
            delattr(module, method)
        else:
            setattr(module, method, before)
