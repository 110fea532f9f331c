"""Values that are made when they are first needed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Lazy"]

T = TypeVar("T")


class Lazy(Generic[T]):
    """A value that is made once, when it is first asked for; an attempt that fails is repeated.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    @cached_property
    def value(self) -> T:
        """The value, made now if it was not yet."""
        return self._make()
