"""Contracts: the one beside a graph, or the shipped one that explains it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tts_compress.config import data_file, data_names, parse_config, read_table
from tts_compress.errors import ModelError, RecipeError, TTSCompressError
from tts_compress.models.contract.parts import (
    Part,
    Signature,
    check_loops,
    following_parts,
    leading_part,
    read_signature,
    steering,
)
from tts_compress.models.contract.piper_file import PiperFile
from tts_compress.models.contract.schema import Contract, StyleInput
from tts_compress.models.contract.styles import Folders, find_file, read_styles, style_files

CONTRACT_NAME = "contract.toml"
SHIPPED = "calib/contracts"


def read_contract_table(path: Path) -> dict[str, Any]:
    """Return the table of a contract, completed by that of the shipped one it is based on."""
    table: dict[str, Any] = json.loads(read_table(path))
    base = table.pop("base", None)
    if base is None:
        return table
    if base not in data_names(SHIPPED):
        known = ", ".join(data_names(SHIPPED))
        raise RecipeError(f"'{path}': no shipped contract is named {base!r:.60}; known: {known}")
    return _merged(read_contract_table(data_file(SHIPPED, base)), table)


def _merged(base: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    both = [
        key for key in table if isinstance(table[key], dict) and isinstance(base.get(key), dict)
    ]
    # A table of another role, or of symbols, is another table.
    kept = [key for key in both if key != "vocabulary" and "role" not in table[key]]
    return base | table | {key: _merged(base[key], table[key]) for key in kept}


def resolved(value: Any, stated: Mapping[str, Mapping[str, Any]], path: Path) -> Any:
    """Return a value with each `{ metadata = "key", default = 0 }` replaced by the graph's own.

    Args:
        value: A contract, or a part of it.
        stated: The graph's `metadata`, and the `config` beside it, which stand for values alike.
        path: The contract, for errors.
    """
    if isinstance(value, list):
        return [resolved(item, stated, path) for item in value]
    if not isinstance(value, dict):
        return value
    kind = next((kind for kind in ("metadata", "config") if kind in value), "")
    key = value.get(kind)
    if not isinstance(key, str) or value.keys() - {kind, "default"}:
        return {name: resolved(item, stated, path) for name, item in value.items()}
    if key in stated.get(kind, {}):
        replacement = stated[kind][key]
        return _parsed(replacement) if kind == "metadata" else replacement
    if "default" in value:
        return value["default"]
    raise RecipeError(
        f"'{path}': the graph's {kind} has no {key!r}; write the value in place of it in a "
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A contract and the graph that it explains."""

    contract: Contract
    path: Path
    """The contract's file."""

    folders: Folders
    """Folders of the voice's files: the graph's, and the one around it where that is apart."""

    leading: Part
    """The graph that comes first."""

    config: PiperFile | None = None
    """The `.onnx.json` that a contract of Piper's tokens takes values from."""

    def parts(self) -> tuple[Part, ...]:
        """Return all graphs, explained, in their order."""
        stated = f"'{self.path}'"
        others = following_parts(self.leading, self.contract, self.folders, stated)
        parts = (self.leading, *others)
        check_loops(parts, self.contract, stated)
        return tuple(steering(parts, self.contract))

    def files(self, parts: Iterable[Part]) -> dict[str, Path]:
        """Return the contract and the files that it names, by their names in an artifact."""
        folders, tokens = self.folders, self.contract.tokens
        roles = [role for part in parts for role in part.roles.values()]
        styles = [role for role in roles if isinstance(role, StyleInput)]
        beside = [path for role in styles for path in style_files(role, folders)]
        named = []
        if tokens.source != "ids" and isinstance(tokens.vocabulary, str):
            named.append(tokens.vocabulary)
        if tokens.source == "lexicon" and tokens.lexicon is not None:
            named.append(tokens.lexicon)
        beside += [find_file(name, folders) for name in named]
        for name in self.contract.files:
            beside += [path for folder in folders for path in sorted(folder.glob(name))]
        if self.config is not None:
            beside.append(self.config.path)
        names = {path.relative_to(folders[-1]).as_posix(): path for path in beside}
        return {CONTRACT_NAME: self.path} | names


def is_explained(path: Path) -> bool:
    """Return True if a graph has a contract beside it, or a shipped one explains its inputs."""
    try:
        return _own_contract(path) is not None or bool(find_contract(path))
    except (TTSCompressError, OSError):
        return False


def is_stated(path: Path) -> bool:
    """Return True if the contract beside a graph explains its inputs."""
    try:
        own = _own_contract(path)
        return own is not None and bool(explain(own, path, read_signature(path)))
    except (TTSCompressError, OSError):
        return False


def find_contract(path: Path) -> Explained:
    """Return the contract of a graph: the file beside it, else the shipped one that fits.

    Of several shipped ones whose inputs fit the one is taken whose other files lie there.
    """
    signature = read_signature(path)
    if (own := _own_contract(path)) is not None:
        return explain(own, path, signature)
    fitting = []
    for name in data_names(SHIPPED):
        try:
            fitting.append(explain(data_file(SHIPPED, name), path, signature))
        except (RecipeError, ModelError):
            continue
    whole = [found for found in fitting if _is_whole(found)]
    if len(whole) == 1 or len(fitting) == 1:
        return (whole or fitting)[0]
    if fitting:
        names = " and ".join(found.contract.name for found in fitting)
        raise ModelError(
            f"the inputs of '{path}' fit the contracts {names}; put its style file or vocoder "
            f'beside it, or a {CONTRACT_NAME} with `base = "{fitting[0].contract.name}"`'
        )
    given = ", ".join(map(str, signature.inputs.values())) or "none"
    raise ModelError(
        f"'{path}' has no {CONTRACT_NAME} beside it, and no shipped contract "
        f"({', '.join(data_names(SHIPPED))}) explains its inputs: {given}"
    )


def explain(
    path: Path, graph: Path, signature: Signature, config: PiperFile | None = None
) -> Explained:
    """Read a contract and check it against the graph that comes first.

    Args:
        path: The contract.
        graph: The graph's file.
        signature: What it reads and returns.
        config: The file of a Piper voice, where it is not the one beside the graph.
    """
    table = read_contract_table(path)
    then = table.pop("then", [])
    tokens = table.get("tokens")
    if config is None and isinstance(tokens, dict) and tokens.get("source") == "piper":
        config = PiperFile(graph.with_name(f"{graph.name}.json"))
    stated = {"metadata": signature.metadata, "config": config.facts if config else {}}
    table = resolved(table, stated, path)
    # The first graph is checked before those behind it are looked for.
    contract = parse_config(json.dumps(table), Contract, f"'{path}'")
    leading = leading_part(graph, signature, contract, f"'{path}'")
    folders = _folders(graph, contract.folder)
    if then:
        if isinstance(then, list):
            then = [resolved(one, {"metadata": _metadata(one, folders)}, path) for one in then]
        table["then"] = then
        contract = parse_config(json.dumps(table), Contract, f"'{path}'")
        leading = leading_part(graph, signature, contract, f"'{path}'")
    return Explained(contract=contract, path=path, folders=folders, leading=leading, config=config)


def leading_graph(folder: Path, names: Iterable[str]) -> Path:
    """Return the graph of an artifact that tokens go into: none that its contract lets follow."""
    stated = read_contract_table(folder / CONTRACT_NAME).get("then", [])
    patterns = [str(table.get("graph")) for table in stated if isinstance(table, dict)]
    graphs = [
        name
        for name in names
        if name.endswith(".onnx") and not any(fnmatchcase(Path(name).name, p) for p in patterns)
    ]
    if len(graphs) != 1:
        raise ModelError(f"'{folder}' has {len(graphs)} graphs that tokens may go into; give one")
    return folder / graphs[0]


def _own_contract(path: Path) -> Path | None:
    """Return the contract beside a graph, or beside the folder that it states for its graphs."""
    if (own := path.with_name(CONTRACT_NAME)).is_file():
        return own
    folder = path.absolute().parent
    above = folder.with_name(CONTRACT_NAME)
    if above.is_file() and read_contract_table(above).get("folder") == folder.name:
        return above
    return None


def _folders(graph: Path, stated: str | None) -> Folders:
    folder = graph.absolute().parent
    return (folder, folder.parent) if folder.name == stated else (folder,)


def _metadata(table: Any, folders: Folders) -> Mapping[str, str]:
    """Return the metadata of a graph that follows; none where it is missing."""
    try:
        return read_signature(find_file(str(table["graph"]), folders[:1])).metadata
    except (ModelError, TypeError, KeyError, ValueError, NotImplementedError):
        return {}  # the schema refuses what is no table, or no name of a file


def _is_whole(explained: Explained) -> bool:
    """Return True if the graphs and styles of a contract lie there, of the right shapes."""
    try:
        for part in explained.parts():
            for role in part.roles.values():
                if isinstance(role, StyleInput):
                    read_styles(role, explained.folders)
    except (ModelError, RecipeError):
        return False
    return True
