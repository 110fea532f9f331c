"""Graphs of a voice as its contract explains them: what each is given, and which run in rounds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

import numpy as np

from tts_compress.errors import RecipeError
from tts_compress.models.base import GraphPart
from tts_compress.models.contract.schema import (
    LEADING_ROLES,
    LOOPED_ROLES,
    ROLES,
    Contract,
    Follower,
    Input,
    OutputInput,
    Sample,
    Spectrum,
    StateInput,
    ValueInput,
    source_of,
)
from tts_compress.models.contract.styles import Folders, find_file
from tts_compress.models.feeds import GraphInput, graph_inputs
from tts_compress.models.graph_file import read_structure

_WHOLE = frozenset({"tokens", "tones", "lengths", "speaker"})
_REAL = frozenset({"style", "noise", "recording"})


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

    repeat: int = 1
    loop: str | None = None
    adds_to: str | None = None
    samples: Mapping[str, Sample] = field(default_factory=dict)
    """Draws of tokens, by name."""

    spectrum: Spectrum | None = None

    @property
    def values(self) -> tuple[str, ...]:
        """Names of all that comes of a run: outputs that are read, and drawn tokens."""
        return (*self.returns, *self.samples)

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
    roles = _match(contract.input, signature, f"{stated}:", "input", accepted)
    return _part(path, signature, roles, contract, contract, f"{stated}: the graph")


def following_parts(
    leading: Part, contract: Contract, folders: Folders, stated: str
) -> Iterator[Part]:
    """Yield the graphs that run behind the first one, explained, in their order."""
    before = leading
    made = {*leading.signature.outputs, *leading.samples}
    for table in contract.then:
        path = find_file(table.graph, folders[:1])
        signature = read_signature(path)
        prefix = f"{stated}, '{path.name}':"
        tables = table.input
        if not isinstance(tables, dict):
            only = tables or next(iter(signature.inputs), "input")
            tables = {only: OutputInput(role="output", output=before.output)}
        roles = _match(tables, signature, prefix, "then.input", ROLES)
        for name, role in roles.items():
            source = source_of(name, role)
            if source is not None and source not in made and not isinstance(role, StateInput):
                raise RecipeError(
                    f"{prefix} [then.input.{name}] is the output {source!r}, but the graphs "
                    f"before it return {', '.join(sorted(made))}"
                )
        yield (before := _part(path, signature, roles, table, contract, f"{prefix} the graph"))
        made |= {*signature.outputs, *table.sample}
    for name, size in contract.size.items():
        if size.output not in made:
            raise RecipeError(
                f"{stated}: [size.{name}] follows from the output {size.output!r}, but the graphs "
                f"return {', '.join(sorted(made))}"
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
    own = [table.output or signature.outputs[0], *states]
    own += [sample.logits for sample in table.sample.values()]
    if table.loop is None:
        own += [role.next for role in roles.values()]
    spectrum = _named_outputs(table.spectrum, signature, prefix)
    own += spectrum.outputs if spectrum is not None else ()
    returns = [name for name in dict.fromkeys(own) if name is not None]
    for name in returns:
        if name not in signature.outputs:
            has = ", ".join(signature.outputs)
            raise RecipeError(f"{prefix} has no output {name!r}; its outputs are {has}")
    if table.adds_to is not None and table.adds_to not in signature.inputs:
        raise RecipeError(f"{prefix} has no input {table.adds_to!r} to add its output to")
    lengths = {size.output for size in contract.size.values() if size.axis is None}
    read = set(_names_read(contract))
    returns += [n for n in signature.outputs if any(fnmatchcase(n, name) for name in read)]
    return Part(
        path=path.absolute(),
        spec=str(path),
        signature=signature,
        roles=roles,
        output=returns[0],
        returns=tuple(dict.fromkeys(returns)),
        lengths=frozenset(lengths.intersection(signature.outputs)),
        repeat=table.repeat,
        loop=table.loop,
        adds_to=table.adds_to,
        samples=table.sample,
        spectrum=spectrum,
    )


def steering(parts: Sequence[Part], contract: Contract) -> Iterator[Part]:
    """Yield graphs marked by whether what they return decides what is said, and when it ends."""
    ends = {n: until.output for n, until in contract.until.items() if until.output is not None}
    last = max((place for place, part in enumerate(parts) if part.loop in ends), default=-1)
    for place, part in enumerate(parts):
        is_sound = place == len(parts) - 1 and ends.get(part.loop or "") not in part.values
        yield replace(part, steers=place <= last and not is_sound)


def _names_read(contract: Contract) -> Iterator[str]:
    """Yield the names of outputs that some graph, size or loop reads; `*` stands for anything."""
    for table in contract.inputs:
        for item in ((n, role) for name, role in table.items() for n in (name, *role.names)):
            yield from filter(None, (source_of(*item), item[1].next))
    yield from (size.output for size in contract.size.values())
    for until in contract.until.values():
        yield from filter(None, (until.output, until.latent))
    if contract.durations is not None:
        yield contract.durations


def loops_of(parts: Iterable[Part]) -> Iterator[tuple[str | None, list[int]]]:
    """Yield the positions of graphs that run in rounds together, with the name of their loop."""
    for name, members in groupby(enumerate(parts), lambda item: item[1].loop):
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
        for value in filter(None, (*nexts, until.output, until.latent)):
            if value not in values:
                raise RecipeError(
                    f"{stated}: loop '{name}' reads {value!r}, which no round of it makes, but "
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


def _match(
    tables: Mapping[str, Input],
    signature: Signature,
    prefix: str,
    place: str,
    accepted: Iterable[str],
) -> dict[str, Input]:
    """Return the tables by the graph's own names of its inputs."""
    roles: dict[str, Input] = {}
    for name, role in _spread(tables, signature.inputs):
        found = [n for n in (name, *role.names) if n in signature.inputs]
        if found:
            roles[found[0]] = role
        elif not role.optional:
            has = ", ".join(signature.inputs) or "none"
            raise RecipeError(f"{prefix} the graph has no input '{name}'; its inputs are {has}")
    for name, expected in signature.inputs.items():
        if name not in roles:
            raise RecipeError(
                f"{prefix} input '{expected}' of the graph is unexplained; add a table "
                f"[{place}.{name}] with a role ({', '.join(accepted)})"
            )
        if roles[name].role not in accepted:
            raise RecipeError(
                f"{prefix} [{place}.{name}] has the role '{roles[name].role}', which only graphs "
                "that run behind another can have"
            )
        if problem := _type_problem(roles[name], expected):
            raise RecipeError(f"{prefix} [{place}.{name}] {problem}")
    return roles


def _spread(tables: Mapping[str, Input], inputs: Iterable[str]) -> Iterator[tuple[str, Input]]:
    """Yield tables by name; one with `*` for each input that it fits and no other table names."""
    for name, role in tables.items():
        before, star, behind = name.partition("*")
        if not star:
            yield name, role
            continue
        for fitting in (n for n in inputs if n not in tables and fnmatchcase(n, name)):
            middle = fitting[len(before) : len(fitting) - len(behind)]
            stated = role.model_dump(include={"output", "next"}, exclude_none=True).items()
            yield fitting, role.model_copy(update={k: v.replace("*", middle) for k, v in stated})


def _type_problem(role: Input, expected: GraphInput) -> str | None:
    """Return why an input of a graph cannot be given what its role states, or None if it can."""
    if role.type is not None and role.type != expected.dtype:
        return f"states type {role.type}, but the graph wants {expected}"
    if role.axes is not None and expected.shape is not None and len(expected.shape) != role.axes:
        return f"states {role.axes} axes, but the graph wants {expected}"
    if isinstance(role, StateInput) and role.shape and not expected.fits(role.shape):
        return f"begins with shape {list(role.shape)}, but the graph wants {expected}"
    whole = expected.dtype.kind in "iu"
    real = role.role in _REAL and expected.dtype.kind != "f"
    if real or (role.role in _WHOLE and not whole):
        kind = "real" if real else "whole"
        return f"has the role '{role.role}', of {kind} numbers, but the graph wants {expected}"
    values = (role.value, role.quiet or 0) if isinstance(role, ValueInput) and whole else ()
    if broken := [value for value in values if np.any(np.asarray(value) % 1)]:
        return f"states {broken[0]}, but the graph wants {expected}: give whole numbers"
    return None
