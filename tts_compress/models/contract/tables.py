"""Tables of contracts before they are checked: what they are based on, and a graph's metadata."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tts_compress.config import data_file, data_names, read_table
from tts_compress.errors import RecipeError

CONTRACT_NAME = "contract.toml"
SHIPPED = "calib/contracts"


def read_contract_table(path: Path) -> dict[str, Any]:
    """Return the table of a contract, completed by that of the shipped one it is based on.

    Raises:
        RecipeError: A file cannot be read, or the base is none of the shipped contracts.
    """
    table: dict[str, Any] = json.loads(read_table(path))
    base = table.pop("base", None)
    if base is None:
        return table
    if base not in data_names(SHIPPED):
        known = ", ".join(data_names(SHIPPED))
        raise RecipeError(f"'{path}': no shipped contract is named {base!r:.60}; known: {known}")
    return _merged(read_contract_table(data_file(SHIPPED, base)), table)


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    both = [key for key in own if isinstance(own[key], dict) and isinstance(base.get(key), dict)]
    # A table of another role, or of symbols, is another table.
    kept = [key for key in both if key != "vocabulary" and "role" not in own[key]]
    return base | own | {key: _merged(base[key], own[key]) for key in kept}


def resolved(value: Any, metadata: Mapping[str, str], path: Path) -> Any:
    """Return a value with each `{ metadata = "key", default = 0 }` replaced by the graph's own.

    Raises:
        RecipeError: The graph's metadata has no such key, and there is no default.
    """
    if isinstance(value, list):
        return [resolved(item, metadata, path) for item in value]
    if not isinstance(value, dict):
        return value
    key = value.get("metadata")
    if not isinstance(key, str) or value.keys() - {"metadata", "default"}:
        return {name: resolved(item, metadata, path) for name, item in value.items()}
    if key in metadata:
        return _parsed(metadata[key])
    if "default" in value:
        return value["default"]
    raise RecipeError(
        f"'{path}': the graph's metadata has no {key!r}; write the value in place of it in a "
        f"{CONTRACT_NAME} beside the graph"
    )


def _parsed(text: str) -> Any:
    """Return a number, a list of what is between commas, or the text itself."""
    if "," in text:
        return [_parsed(part.strip()) for part in text.split(",") if part.strip()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
