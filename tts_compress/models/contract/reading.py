"""Contracts of graphs: the one beside a graph, or the shipped one that explains its inputs."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from tts_compress.config import data_file, data_names, parse_config, read_table
from tts_compress.errors import ModelError, RecipeError, TTSCompressError, first_line
from tts_compress.models.contract.schema import ROLES, Contract, Input, StyleInput, ValueInput
from tts_compress.models.contract.styles import read_styles
from tts_compress.models.feeds import GraphInput, graph_inputs

CONTRACT_NAME = "contract.toml"
_SHIPPED = "calib/contracts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Inputs, outputs and metadata of a graph."""

    inputs: Mapping[str, GraphInput]
    outputs: tuple[str, ...]
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A contract and the graph that it explains."""

    contract: Contract
    path: Path
    """The contract's file."""

    signature: Signature
    roles: Mapping[str, Input]
    """The contract's tables by the graph's own names of its inputs."""


def read_signature(path: Path) -> Signature:
    """Return the inputs, outputs and metadata of a graph; weights in other files are not read.

    Raises:
        ModelError: The file is not a readable ONNX file.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, OSError, ValueError) as error:
        raise ModelError(f"'{path}' is not a readable ONNX file: {first_line(error)}") from error
    return Signature(
        inputs=graph_inputs(model),
        outputs=tuple(value.name for value in model.graph.output),
        metadata={entry.key: entry.value for entry in model.metadata_props},
    )


def is_explained(path: Path) -> bool:
    """Return True if a graph has a contract beside it, or a shipped one explains its inputs."""
    if path.with_name(CONTRACT_NAME).is_file():
        return True
    try:
        find_contract(path)
    except (TTSCompressError, OSError):
        return False
    return True


def find_contract(path: Path) -> Explained:
    """Return the contract of a graph: the file beside it, else the shipped one that fits.

    Of several shipped ones whose inputs fit the one is taken whose style file lies there.

    Raises:
        RecipeError: The contract is malformed, or leaves an input unexplained.
        ModelError: The graph cannot be read, no contract fits, or several do.
    """
    signature = read_signature(path)
    if (own := path.with_name(CONTRACT_NAME)).is_file():
        return explain(own, signature)
    fitting, problems = [], []
    for name in data_names(_SHIPPED):
        try:
            found = explain(data_file(_SHIPPED, name), signature)
        except RecipeError as error:
            problems.append(str(error))
            continue
        fitting.append(found)
    whole = [found for found in fitting if _has_styles(found, path.parent)]
    if len(whole) == 1 or len(fitting) == 1:
        return (whole or fitting)[0]
    if fitting:
        names = " and ".join(found.contract.name for found in fitting)
        raise ModelError(
            f"the inputs of '{path}' fit the contracts {names}; put its style file beside it, or "
            f'a {CONTRACT_NAME} with `base = "{fitting[0].contract.name}"`'
        )
    given = ", ".join(map(str, signature.inputs.values())) or "none"
    raise ModelError(
        f"'{path}' has no {CONTRACT_NAME} beside it, and no shipped contract "
        f"({', '.join(data_names(_SHIPPED))}) explains its inputs: {given}"
    )


def explain(path: Path, signature: Signature) -> Explained:
    """Read a contract and check it against a graph.

    Raises:
        RecipeError: It is malformed, or graph and contract differ.
    """
    table = _resolved(_with_base(path), signature.metadata, path)
    contract = parse_config(json.dumps(table), Contract, f"'{path}'")
    roles: dict[str, Input] = {}
    for name, role in contract.input.items():
        found = [n for n in (name, *role.names) if n in signature.inputs]
        if found:
            roles[found[0]] = role
        elif not role.optional:
            has = ", ".join(signature.inputs) or "none"
            raise RecipeError(f"'{path}': the graph has no input '{name}'; its inputs are {has}")
    for name, expected in signature.inputs.items():
        if name not in roles:
            raise RecipeError(
                f"'{path}': input '{expected}' of the graph is unexplained; add a table "
                f"[input.{name}] with a role ({', '.join(ROLES)})"
            )
        if problem := _type_problem(roles[name], expected):
            raise RecipeError(f"'{path}': [input.{name}] {problem}")
    if contract.output is not None and contract.output not in signature.outputs:
        raise RecipeError(
            f"'{path}': the graph has no output {contract.output!r}; its outputs are "
            f"{', '.join(signature.outputs)}"
        )
    return Explained(contract=contract, path=path, signature=signature, roles=roles)


def leading_graph(folder: Path, names: Iterable[str]) -> Path:
    """Return the graph of an artifact that tokens go into: none that its contract lets follow.

    Raises:
        ModelError: There is none, or several.
        RecipeError: The contract cannot be read.
    """
    stated = _with_base(folder / CONTRACT_NAME).get("then", [])
    patterns = [str(table.get("graph")) for table in stated if isinstance(table, dict)]
    graphs = [
        name
        for name in names
        if name.endswith(".onnx") and not any(fnmatchcase(name, p) for p in patterns)
    ]
    if len(graphs) != 1:
        raise ModelError(f"'{folder}' has {len(graphs)} graphs that tokens may go into; give one")
    return folder / graphs[0]


def _type_problem(role: Input, expected: GraphInput) -> str | None:
    """Return why an input of a graph cannot be given what its role states, or None if it can."""
    if role.type is not None and role.type != expected.dtype:
        return f"states type {role.type}, but the graph wants {expected}"
    if role.axes is not None and expected.shape is not None and len(expected.shape) != role.axes:
        return f"states {role.axes} axes, but the graph wants {expected}"
    whole = expected.dtype.kind in "iu"
    if role.role in {"tokens", "tones", "lengths", "speaker"} and not whole:
        return f"has the role '{role.role}', of whole numbers, but the graph wants {expected}"
    if role.role in {"style", "noise"} and expected.dtype.kind != "f":
        return f"has the role '{role.role}', of real numbers, but the graph wants {expected}"
    if isinstance(role, ValueInput) and whole:
        for value in (role.value, role.value if role.quiet is None else role.quiet):
            if np.any(np.asarray(value) % 1):
                return f"states {value}, but the graph wants {expected}: give whole numbers"
    return None


def _has_styles(found: Explained, folder: Path) -> bool:
    """Return True if the style file of a contract is in a folder and of the right shape."""
    styles = [role for role in found.roles.values() if isinstance(role, StyleInput)]
    try:
        for role in styles:
            read_styles(role, folder)
    except ModelError:
        return False
    return True


def _with_base(path: Path) -> dict[str, Any]:
    """Return the table of a contract, completed by that of the shipped one it is based on.

    Raises:
        RecipeError: A file cannot be read, or the base is none of the shipped contracts.
    """
    table: dict[str, Any] = json.loads(read_table(path))
    base = table.pop("base", None)
    if base is None:
        return table
    if base not in data_names(_SHIPPED):
        known = ", ".join(data_names(_SHIPPED))
        raise RecipeError(f"'{path}': no shipped contract is named {base!r:.60}; known: {known}")
    return _merged(_with_base(data_file(_SHIPPED, base)), table)


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    both = [key for key in own if isinstance(own[key], dict) and isinstance(base.get(key), dict)]
    # A table of another role, or of symbols, is another table.
    kept = [key for key in both if key != "vocabulary" and "role" not in own[key]]
    return base | own | {key: _merged(base[key], own[key]) for key in kept}


def _resolved(value: Any, metadata: Mapping[str, str], path: Path) -> Any:
    """Return a value with each `{ metadata = "key", default = 0 }` replaced by the graph's own.

    Raises:
        RecipeError: The graph's metadata has no such key, and there is no default.
    """
    if isinstance(value, list):
        return [_resolved(item, metadata, path) for item in value]
    if not isinstance(value, dict):
        return value
    key = value.get("metadata")
    if not isinstance(key, str) or value.keys() - {"metadata", "default"}:
        return {name: _resolved(item, metadata, path) for name, item in value.items()}
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
