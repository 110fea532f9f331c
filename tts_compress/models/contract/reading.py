"""Contracts of graphs: the one beside a graph, or the shipped one that explains its inputs."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tts_compress.config import data_file, data_names, parse_config
from tts_compress.errors import ModelError, RecipeError, TTSCompressError
from tts_compress.models.contract.inputs import StyleInput
from tts_compress.models.contract.parts import (
    CONTRACT_NAME,
    SHIPPED,
    Part,
    Signature,
    following_parts,
    leading_part,
    read_contract_table,
    read_signature,
    resolved,
)
from tts_compress.models.contract.piper_file import PiperFile
from tts_compress.models.contract.schema import Contract
from tts_compress.models.contract.styles import Folders, find_file, read_styles


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
        """Return all graphs, explained, in their order.

        Raises:
            ModelError: A file is missing, or is not a readable ONNX file.
            RecipeError: A graph and the contract differ.
        """
        others = following_parts(self.leading, self.contract, self.folders, f"'{self.path}'")
        return (self.leading, *others)


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

    Raises:
        RecipeError: The contract is malformed, or leaves an input unexplained.
        ModelError: The graph cannot be read, no contract fits, or several do.
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

    Raises:
        RecipeError: It is malformed, or graph and contract differ.
        ModelError: The file of a Piper voice is missing or malformed.
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
    """Return the graph of an artifact that tokens go into: none that its contract lets follow.

    Raises:
        ModelError: There is none, or several.
        RecipeError: The contract cannot be read.
    """
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


def _is_whole(found: Explained) -> bool:
    """Return True if the graphs and styles of a contract lie there, of the right shapes."""
    try:
        for part in found.parts():
            for role in part.roles.values():
                if isinstance(role, StyleInput):
                    read_styles(role, found.folders)
    except (ModelError, RecipeError):
        return False
    return True
