"""Standing between a module and who calls it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

__all__ = ["intercepted"]


@contextmanager
def intercepted(module: nn.Module, method: str, answer: Callable[..., Any]) -> Iterator[None]:
    """Have calls of a module's method answered by `answer` in the block.

    Args:
        module: Left as it was, also after an error.
        method: `forward` stands for calls of the module itself.
        answer: Is given the method, then what it was called with.
    """
    own = vars(module)
    before = own.get(method)
    original = getattr(module, method)

    def intercept(*arguments: Any, **keywords: Any) -> Any:
        return answer(original, *arguments, **keywords)

    own[method] = intercept
    try:
        yield
    finally:
        if before is None:
            del own[method]
        else:
            own[method] = before
