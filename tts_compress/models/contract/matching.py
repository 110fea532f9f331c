"""The inputs of a graph, each matched with the table of a contract that explains it."""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

import numpy as np

from tts_compress.errors import RecipeError
from tts_compress.models.contract.inputs import Input, StateInput, ValueInput
from tts_compress.models.feeds import GraphInput

_WHOLE = frozenset({"tokens", "tones", "lengths", "transcript", "speaker"})
_REAL = frozenset({"style", "noise", "recording", "time"})


def match_inputs(
    tables: Mapping[str, Input],
    inputs: Mapping[str, GraphInput],
    prefix: str,
    section: str,
    accepted: Iterable[str],
) -> dict[str, Input]:
    """Return the tables by the graph's own names of its inputs."""
    roles: dict[str, Input] = {}
    for name, role in spread_tables(tables, inputs):
        present = [n for n in (name, *role.names) if n in inputs]
        if present:
            roles[present[0]] = role
        elif not role.optional:
            has = ", ".join(inputs) or "none"
            raise RecipeError(f"{prefix} the graph has no input '{name}'; its inputs are {has}")
    for name, expected in inputs.items():
        if name not in roles:
            raise RecipeError(
                f"{prefix} input '{expected}' of the graph is unexplained; add a table "
                f"[{section}.{name}] with a role ({', '.join(accepted)})"
            )
        if roles[name].role not in accepted:
            raise RecipeError(
                f"{prefix} [{section}.{name}] has the role '{roles[name].role}', which only graphs "
                "that run behind another can have"
            )
        if problem := _type_problem(roles[name], expected):
            raise RecipeError(f"{prefix} [{section}.{name}] {problem}")
    return roles


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


def spread_tables(
    tables: Mapping[str, Input], inputs: Iterable[str]
) -> Iterator[tuple[str, Input]]:
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
