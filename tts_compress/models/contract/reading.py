"""Contracts: the one beside a graph, or the shipped one that explains it, and each graph's part."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any

from tts_compress.config import data_file, data_names, parse_config, read_table
from tts_compress.errors import ModelError, RecipeError, TTSCompressError
from tts_compress.models.base import GraphPart
from tts_compress.models.contract.inputs import (
    LEADING_ROLES,
    LOOPED_ROLES,
    ROLES,
    Input,
    OutputInput,
    StateInput,
    StyleInput,
    match_inputs,
    source_of,
)
from tts_compress.models.contract.piper_file import PiperFile
from tts_compress.models.contract.schema import Contract, Follower, GraphTable, Spectrum, names_read
from tts_compress.models.contract.styles import Folders, find_file, read_styles, style_files
from tts_compress.models.feeds import GraphInput, graph_inputs
from tts_compress.models.graph_file import read_structure
from tts_compress.models.options import number_or_text

CONTRACT_NAME = "contract.toml"
SHIPPED = "calib/contracts"


def read_contract_table(path: Path) -> dict[str, Any]:
    """Return the table of a contract, completed by that of the shipped one it is based on."""
    table: dict[str, Any] = json.loads(read_table(path))
    base = table.pop("base", None)
    if base is None:
        return table
    if base not in data_names(SHIPPED):
        names = ", ".join(data_names(SHIPPED))
        raise RecipeError(f"'{path}': no shipped contract is named {base!r:.60}; known: {names}")
    return _merged(read_contract_table(data_file(SHIPPED, base)), table)


def _merged(base: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    both = [
        key for key in table if isinstance(table[key], dict) and isinstance(base.get(key), dict)
    ]
    # A table of another role, or of symbols, is another table.
    kept = [key for key in both if key != "vocabulary" and "role" not in table[key]]
    merged = base | table | {key: _merged(base[key], table[key]) for key in kept}
    with suppress(TypeError, KeyError, AttributeError):  # the schema refuses what is no table
        graphs, changes = ({t["graph"]: t for t in stated["then"]} for stated in (base, table))
        if len(graphs) == len(base["then"]) and changes.keys() <= graphs.keys():
            merged["then"] = [_merged(t, changes.get(name, {})) for name, t in graphs.items()]
    return merged


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
    replacement = stated.get(kind, {}).get(key)
    if replacement not in (None, "", "None"):  # exporters write Python's None, too
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
    return number_or_text(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Inputs, outputs and metadata of a graph."""

    inputs: Mapping[str, GraphInput]
    outputs: tuple[str, ...]
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(GraphPart):
    """One graph of a voice, explained."""

    signature: Signature
    roles: Mapping[str, Input]
    """The contract's tables by the graph's own names of its inputs."""

    output: str
    """The output that is audio, or that the next graph reads where nothing else is stated."""

    returns: tuple[str, ...]
    """Every output that is read."""

    table: GraphTable
    """How often it runs, and what is made of its outputs."""

    @property
    def values(self) -> tuple[str, ...]:
        """Names of all that comes of a run: outputs that are read, and what is made of them."""
        return (*self.returns, *self.table.flow, *self.table.sample)

    @property
    def joined(self) -> tuple[str, ...]:
        """Names of what is read of all rounds."""
        roles = [(n, r) for n, r in self.roles.items() if isinstance(r, OutputInput)]
        return tuple(role.output or name for name, role in roles if role.join is not None)


def read_signature(path: Path) -> Signature:
    """Return the inputs, outputs and metadata of a graph; weights in other files are not read."""
    model = read_structure(path)
    return Signature(
        inputs=graph_inputs(model),
        outputs=tuple(value.name for value in model.graph.output),
        metadata={entry.key: entry.value for entry in model.metadata_props},
    )


def leading_part(path: Path, signature: Signature, contract: Contract, stated: str) -> Part:
    """Return the graph that comes first, explained."""
    accepted = LEADING_ROLES if contract.loop is None and contract.repeat == 1 else LOOPED_ROLES
    roles = match_inputs(contract.input, signature.inputs, f"{stated}:", "input", accepted)
    return _part(path, signature, roles, contract, contract, f"{stated}: the graph")


def following_parts(
    leading: Part, contract: Contract, folders: Folders, stated: str
) -> Iterator[Part]:
    """Yield the graphs that run behind the first one, explained, in their order."""
    before = leading
    outputs = {*contract.recording, *leading.signature.outputs, *leading.values}
    for table in contract.then:
        path = find_file(table.graph, folders[:1])
        path = leading.path if path == leading.path.absolute() else path
        signature = read_signature(path)
        prefix = f"{stated}, '{path.name}':"
        tables = table.input
        if not isinstance(tables, dict):
            only = tables or next(iter(signature.inputs), "input")
            tables = {only: OutputInput(role="output", output=before.output)}
        roles = match_inputs(tables, signature.inputs, prefix, "then.input", ROLES)
        for name, role in roles.items():
            source = source_of(name, role)
            if source is not None and source not in outputs and not isinstance(role, StateInput):
                raise RecipeError(
                    f"{prefix} [then.input.{name}] is the output {source!r}, but the graphs "
                    f"before it return {', '.join(sorted(outputs))}"
                )
        yield (before := _part(path, signature, roles, table, contract, f"{prefix} the graph"))
        outputs |= {*signature.outputs, *before.values}
    for name, size in contract.size.items():
        if size.output not in outputs:
            raise RecipeError(
                f"{stated}: [size.{name}] follows from the output {size.output!r}, but the graphs "
                f"return {', '.join(sorted(outputs))}"
            )


def _part(
    path: Path,
    signature: Signature,
    roles: Mapping[str, Input],
    table: Contract | Follower,
    contract: Contract,
    prefix: str,
) -> Part:
    if not signature.outputs:
        raise RecipeError(f"{prefix} has no outputs; give one that returns audio or features")
    states = [source_of(n, role) for n, role in roles.items() if isinstance(role, StateInput)]
    outputs = [table.output or signature.outputs[0], *states]
    outputs += [sample.logits for sample in table.sample.values()]
    outputs += [flow.output for flow in table.flow.values()]
    if wrong := {flow.input for flow in table.flow.values()} - roles.keys():
        raise RecipeError(f"{prefix} has no input {wrong.pop()!r} that a flow could move")
    if table.loop is None:
        drawn = {None, *table.flow, *table.sample}
        outputs += [role.next for role in roles.values() if role.next not in drawn]
    spectrum = _named_outputs(table.spectrum, signature, prefix)
    outputs += spectrum.outputs if spectrum is not None else ()
    returns = [name for name in dict.fromkeys(outputs) if name is not None]
    for name in returns:
        if name not in signature.outputs:
            has = ", ".join(signature.outputs)
            raise RecipeError(f"{prefix} has no output {name!r}; its outputs are {has}")
    lengths = contract.prompts.union(s.output for s in contract.size.values() if s.axis is None)
    read = set(names_read(contract, table.loop))
    returns += [n for n in signature.outputs if any(fnmatchcase(n, name) for name in read)]
    return Part(
        path=path,
        spec=str(path),
        signature=signature,
        roles=roles,
        output=returns[0],
        returns=tuple(dict.fromkeys(returns)),
        lengths=frozenset(lengths.intersection(signature.outputs)),
        table=table.model_copy(update={"spectrum": spectrum}),
    )


def steering(parts: Sequence[Part], contract: Contract) -> Iterator[Part]:
    """Yield graphs marked by whether what they return decides what is said, and when it ends."""
    ends = {n: until.output for n, until in contract.until.items() if until.output is not None}
    last = max((number for number, part in enumerate(parts) if part.table.loop in ends), default=-1)
    for number, part in enumerate(parts):
        is_sound = number == len(parts) - 1 and ends.get(part.table.loop or "") not in part.values
        yield replace(part, steers=number <= last and not is_sound)


def loops_of(parts: Iterable[Part]) -> Iterator[tuple[str | None, list[int]]]:
    """Yield the positions of graphs that run in rounds together, with the name of their loop."""
    for name, members in groupby(enumerate(parts), lambda item: item[1].table.loop):
        positions = [position for position, _ in members]
        yield from [(name, positions)] if name else [(None, [position]) for position in positions]


def check_loops(parts: Sequence[Part], contract: Contract, stated: str) -> None:
    """Refuse loops that are not stated, are apart, or read or end by what none of them makes."""
    loops = {name: [parts[p] for p in places] for name, places in loops_of(parts) if name}
    names = [name for name, _ in loops_of(parts) if name]
    if sorted(names) != sorted(contract.until):
        raise RecipeError(
            f"{stated}: every loop needs a table [until.…], and graphs one after the other; graphs "
            f"run in {names or 'none'}, and there are tables for {[*contract.until] or 'none'}"
        )
    for name, members in loops.items():
        until, values = contract.until[name], {value for part in members for value in part.values}
        nexts = [role.next for part in members for role in part.roles.values()]
        if missing := {*nexts, until.output, until.latent} - {None, *values}:
            raise RecipeError(
                f"{stated}: loop '{name}' reads {missing.pop()!r}, which no round of it makes, but "
                f"{', '.join(sorted(values))}"
            )


def _named_outputs(spectrum: Spectrum | None, signature: Signature, prefix: str) -> Spectrum | None:
    """Return a table that names the outputs which it takes."""
    if spectrum is None:
        return None
    names = (spectrum.outputs or signature.outputs)[: spectrum.count]
    if len(names) < spectrum.count:
        raise RecipeError(
            f"{prefix} form '{spectrum.form}' needs {spectrum.count} outputs; there are "
            f"{', '.join(names)}"
        )
    return spectrum.model_copy(update={"outputs": names})


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
        contract = _own_contract(path)
        return contract is not None and bool(explain(contract, path, read_signature(path)))
    except (TTSCompressError, OSError):
        return False


def find_contract(path: Path) -> Explained:
    """Return the contract of a graph: the file beside it, else the shipped one that fits.

    Of several shipped ones whose inputs fit the one is taken whose other files lie there.
    """
    signature = read_signature(path)
    if (stated := _own_contract(path)) is not None:
        return explain(stated, path, signature)
    fitting = []
    for name in data_names(SHIPPED):
        try:
            fitting.append(explain(data_file(SHIPPED, name), path, signature))
        except (RecipeError, ModelError):
            continue
    whole = [explained for explained in fitting if _is_whole(explained)]
    if len(whole) == 1 or len(fitting) == 1:
        return (whole or fitting)[0]
    if fitting:
        names = " and ".join(explained.contract.name for explained in fitting)
        raise ModelError(
            f"the inputs of '{path}' fit the contracts {names}; put its style file or vocoder "
            f'beside it, or a {CONTRACT_NAME} with `base = "{fitting[0].contract.name}"`'
        )
    inputs = ", ".join(map(str, signature.inputs.values())) or "none"
    raise ModelError(
        f"'{path}' has no {CONTRACT_NAME} beside it, and no shipped contract "
        f"({', '.join(data_names(SHIPPED))}) explains its inputs: {inputs}"
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
            then = [resolved(t, {"metadata": _metadata(t, folders)}, path) for t in then]
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
    if (contract := path.with_name(CONTRACT_NAME)).is_file():
        return contract
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
