"""Names of a package that are imported on first use (PEP 562)."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def resolve_lazily(
    package: str, names: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package.

    Args:
        package: Its name.
        names: Its public names, by the module in it that they come from.
    """
    homes = {name: home for home, several in names.items() for name in several}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get, lambda: sorted({*vars(sys.modules[package]), *homes})
