"""Packages that an extra of this project brings, imported when they are first needed."""

import importlib
from typing import Any

from tts_compress.errors import MissingExtraError


def import_package(name: str, extra: str) -> Any:
    """Return a module of a package.

    Args:
        name: Dotted name of the module.
        extra: Extra of this project that installs the package.

    Raises:
        MissingExtraError: It, or another one that it imports, is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(error.name or name, extra) from error
