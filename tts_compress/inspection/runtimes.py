"""Runtimes that play ONNX graphs and the operators they have: one file each in `calib/runtimes`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from tts_compress.config import Config, ConfigFile, data_file, data_names, read_config
from tts_compress.errors import RecipeError

_FOLDER = "calib/runtimes"

STANDARD = "ai.onnx"
"""Domain of ONNX's own operators, which graphs leave empty."""


class Release(Config):
    """A release of a runtime."""

    opset: int | None = None
    """Newest version of the standard operators that it opens; None where none is known."""

    ir: int | None = None
    """Newest IR version that it opens; None where none is known."""

    runs: str | None = None
    """Release of `base` inside of it."""


class RuntimeFile(ConfigFile):
    """Operators and limits of a runtime, by release."""

    summary: str
    evidence: Literal["code", "documentation"]
    """Origin of the lists: the runtime itself, or only its documentation."""

    source: str
    base: str | None = None
    """Runtime whose operators it has, in place of lists of its own."""

    fallback: str | None = None
    """Runtime that computes what this one lacks."""

    fixed_sizes: bool = False
    """True if every size has to be known before a graph runs."""

    functions: bool = True
    """True if it opens models with functions of their own."""

    schemes: tuple[str, ...] = ()
    """Options of `quantize` whose artifacts it plays, best first."""

    releases: dict[str, Release]
    """Oldest first."""

    operators: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Operators of the newest release, by domain."""

    added: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Operators that a release brought and older ones lack, with their domains, and with an element
    type (`ai.onnx.Max of uint8`) where only that is new."""

    lacks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Standard operators of the newest release that do not take an element type, by that type."""

    metadata: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Keys of a graph's metadata that it reads, by family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeRelease:
    """One release of a runtime."""

    name: str
    release: str
    file: RuntimeFile
    operators: frozenset[str]
    """Its operators, with their domains."""

    lacks: frozenset[str]
    """Operators with element types that they do not take, such as `ai.onnx.Conv of double`."""

    opset: int | None
    ir: int | None
    fallback: "RuntimeRelease | None"
    """Newest release of the runtime that computes what this one lacks."""


def runtime_names() -> list[str]:
    """Return the names of the shipped runtimes."""
    return data_names(_FOLDER)


def find_runtimes(name: str) -> list[RuntimeRelease]:
    """Return releases of a runtime: the wanted one first, then all others, oldest first.

    Args:
        name: A shipped runtime or a `.toml` file, and a release of it after a colon where the
            newest one is not meant. A release that is not listed counts as the listed one before.
    """
    stem, _, wanted = name.partition(":")
    path = data_file(_FOLDER, stem)
    file = read_config(path, RuntimeFile)
    if not file.releases:
        raise RecipeError(f"'{path}' lists no release; write at least one")
    releases = [_at_release(path, file, release) for release in file.releases]
    newest = _listed_release(stem, wanted, list(file.releases)) if wanted else releases[-1].release
    return sorted(releases, key=lambda runtime: runtime.release != newest)


def _listed_release(name: str, wanted: str, listed: list[str]) -> str:
    """Return the newest listed release that is not newer than the wanted one."""
    known = f"known releases of {name}: {', '.join(listed)}"
    try:
        number = _number(wanted)
    except ValueError:
        raise RecipeError(f"{wanted!r} is no release; {known}") from None
    older = [release for release in listed if _number(release) <= number]
    if not older:
        raise RecipeError(f"release {wanted} of {name} is older than all that are known; {known}")
    return older[-1]


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _at_release(path: Path, file: RuntimeFile, release: str) -> RuntimeRelease:
    """Return one release of a runtime, with what it takes from others."""
    stated = file.releases[release]
    fallback = find_runtimes(file.fallback)[0] if file.fallback else None
    if file.base is not None:
        base = find_runtimes(f"{file.base}:{stated.runs}" if stated.runs else file.base)[0]
        operators, lacks = base.operators, base.lacks
        opset, ir = base.opset, base.ir
    else:
        operators, lacks = _own_operators(path, file, release)
        opset, ir = stated.opset, stated.ir
    return RuntimeRelease(
        name=path.stem,
        release=release,
        file=file,
        operators=operators,
        lacks=lacks,
        opset=opset,
        ir=ir,
        fallback=fallback,
    )


def of_type(operator: str, element: str) -> str:
    """Return the name of an operator that computes in an element type."""
    return f"{operator} of {element}"


def _own_operators(
    path: Path, file: RuntimeFile, release: str
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the operators of a release and what they lack: without what came later."""
    order = list(file.releases)
    if unknown := [name for name in file.added if name not in order]:
        raise RecipeError(f"'{path}': 'added' names releases that are not listed: {unknown}")
    operators = {f"{domain}.{op}" for domain, names in file.operators.items() for op in names}
    lacks = {
        of_type(f"{STANDARD}.{op}", element)
        for element, names in file.lacks.items()
        for op in names
    }
    later = {
        name
        for newer, names in file.added.items()
        if order.index(newer) > order.index(release)
        for name in names
    }
    return frozenset(operators - later), frozenset(lacks | (later - operators))
