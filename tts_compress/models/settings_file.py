"""Files of settings, which may be damaged: whatever they hold is an answer or one error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError, reason
from tts_compress.models.packages import import_package

if TYPE_CHECKING:
    from pathlib import Path


def read_json(path: Path) -> Any:
    """Return what a JSON file says.

    Raises:
        ModelError: It cannot be read, or says nothing.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read '{path}': {reason(error)}") from error


def read_yaml(path: Path, extra: str) -> Any:
    """Return what a YAML file says; it can make no objects but numbers, texts and dates.

    Args:
        path: The file.
        extra: Of this project; brings PyYAML.

    Raises:
        ModelError: It cannot be read.
        MissingExtraError: PyYAML is not installed.
    """
    yaml = import_package("yaml", extra)
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    # Numbers and dates that are none make the reader fail with errors of the types they become.
    except (OSError, ValueError, TypeError, OverflowError, RecursionError, yaml.YAMLError) as error:
        raise ModelError(f"cannot read '{path}': {reason(error)}") from error
