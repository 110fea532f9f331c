"""Readers of settings files, which may be damaged: any content gives a value or a `ModelError`."""

import json
from pathlib import Path
from typing import Any

from tts_compress.errors import ModelError, reason
from tts_compress.models.packages import import_package


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        ModelError: It cannot be read, or is not valid JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read '{path}': {reason(error)}") from error


def read_yaml(path: Path, extra: str) -> Any:
    """Return the content of a YAML file, which can create no objects but plain data and dates.

    Args:
        path: The file.
        extra: Extra of this project that installs PyYAML.

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
