"""Verdicts on where a model plays: what its graphs require, and the operators that runtimes have.

A runtime is one file in `calib/runtimes`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import onnx
import onnxruntime
from onnx import TensorProto, shape_inference
from pydantic import Field
from rich.console import RenderableType

from tts_compress.config import Config, ConfigFile, data_file, data_names, read_config
from tts_compress.errors import ModelError, RecipeError
from tts_compress.models.base import Model, OnnxGraph
from tts_compress.onnx.graph import copy_model, element_types, inline_functions, standard_opset
from tts_compress.onnx.modules import INTEGER_LAYERS
from tts_compress.onnx.nodes import nested_nodes
from tts_compress.onnx.session import open_session

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
    stem, wanted = _split(name)
    path = data_file(_FOLDER, stem)
    file = read_config(path, RuntimeFile)
    if not file.releases:
        raise RecipeError(f"'{path}' lists no release; write at least one")
    releases = [_at_release(path, file, release) for release in file.releases]
    newest = _listed_release(stem, wanted, list(file.releases)) if wanted else releases[-1].release
    return sorted(releases, key=lambda runtime: runtime.release != newest)


def _split(name: str) -> tuple[str, str]:
    """Return a runtime and its release; the colon in a path, as after a drive, begins none."""
    stem, _, release = name.rpartition(":")
    return (stem, release) if stem and not {"/", "\\"} & {*release} else (name, "")


def _listed_release(name: str, wanted: str, listed: list[str]) -> str:
    """Return the newest listed release that is not newer than the wanted one."""
    releases = f"known releases of {name}: {', '.join(listed)}"
    try:
        number = _number(wanted)
    except ValueError:
        raise RecipeError(f"{wanted!r} is no release; {releases}") from None
    older = [release for release in listed if _number(release) <= number]
    if not older:
        raise RecipeError(
            f"release {wanted} of {name} is older than all that are known; {releases}"
        )
    return older[-1]


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _at_release(path: Path, file: RuntimeFile, release: str) -> RuntimeRelease:
    """Return one release of a runtime, with what it takes from others."""
    stated = file.releases[release]
    fallback = find_runtimes(file.fallback)[0] if file.fallback else None
    if file.base is not None:
        base = find_runtimes(f"{file.base}:{stated.runs}" if stated.runs else file.base)[0]
        return replace(base, name=path.stem, release=release, file=file, fallback=fallback)
    operators, lacks = _own_operators(path, file, release)
    return RuntimeRelease(
        name=path.stem,
        release=release,
        file=file,
        operators=operators,
        lacks=lacks,
        opset=stated.opset,
        ir=stated.ir,
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


_OF_SCHEMES = INTEGER_LAYERS | {"DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"}
"""Operators that schemes put into graphs; of other domains than the standard one all are theirs."""

_HERE = "onnxruntime"
"""The runtime that is installed with this package."""

_NAMED = 4
"""Operators left to another runtime that a terminal names."""

_ZERO_POINTS = {
    "QLinearConcat": 1,
    **dict.fromkeys(("QLinearAdd", "QLinearConv", "QLinearMul"), 7),
    **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"), 4),
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool"), 4),
}
"""Position of the output's zero point among the inputs, which has the output's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needs:
    """Requirements of a graph on a runtime."""

    operators: Mapping[tuple[str, str], int]
    """Numbers of nodes other than constants, with those of functions in the place of calls.

    By the operator's name, with its domain, and ONNX's name in lower case of the element type of
    its first input, empty where that is not known.
    """

    functions: Mapping[str, int]
    """Numbers of calls of the model's own functions."""

    opset: int
    """Version of the standard operators."""

    ir: int
    open_sizes: tuple[str, ...]
    """Inputs with a size that is not fixed."""

    metadata: frozenset[str]
    """Keys of the model's metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeVerdict:
    """The answer to whether a runtime plays a model."""

    runtime: str
    release: str
    unknown_release: str | None
    """A release that was asked for and is not known; `release` is judged in its place."""

    evidence: str
    """`code` or `documentation`, from which the runtime's operators are known."""

    source: str
    plays: bool
    operators: int
    """Number of the model's operators."""

    missing: Mapping[str, int]
    """Numbers of operators that nothing there computes, by name."""

    on_fallback: Mapping[str, int]
    """Numbers of operators that another runtime computes for it, by name."""

    fallback: str | None
    problems: Sequence[str]
    """Sentences on what else keeps it from playing."""

    since: str | None
    """Oldest known release that plays it; None where none does."""

    advice: str | None


def check_runtime(model: Model, name: str) -> RuntimeVerdict:
    """Return whether a runtime plays a model.

    Args:
        model: A graph, a chain of graphs, or a voice of these.
        name: A runtime, and a release after a colon where the newest one is not meant.
    """
    if not isinstance(model, OnnxGraph):
        raise ModelError(
            f"'{model.spec}' is no ONNX graph, which is what these runtimes play; give an .onnx "
            "file or an artifact of one (tts-compress export writes those of some systems)"
        )
    needs = [_read_needs(model.written(part)) for part in model.parts]
    wanted, *_ = releases = find_runtimes(name)
    order = list(wanted.file.releases)
    playing = {
        r.release
        for r in releases
        if not (_missing(needs, r) or any(_problems(needs, r, model.family)))
    }
    missing, left = _missing(needs, wanted), _on_fallback(needs, wanted)
    problems = list(_problems(needs, wanted, model.family))
    if wanted.release in playing and (refused := list(_refusals(model, wanted))):
        problems, playing = refused, set[str]()
    asked = _split(name)[1]
    return RuntimeVerdict(
        runtime=wanted.name,
        release=wanted.release,
        unknown_release=None if f"{asked}.".startswith(f"{wanted.release}.") else asked or None,
        evidence=wanted.file.evidence,
        source=wanted.file.source,
        plays=wanted.release in playing,
        operators=sum(sum(need.operators.values()) for need in needs),
        missing=missing,
        on_fallback=left,
        fallback=wanted.fallback.name if wanted.fallback else None,
        problems=problems,
        since=next((release for release in order if release in playing), None),
        advice=None if problems else _advice(model, wanted, {**missing, **left}),
    )


def verdict_lines(verdict: RuntimeVerdict) -> list[RenderableType]:
    """Return a verdict as lines for a terminal."""
    evidence = ", according to its documentation" if verdict.evidence == "documentation" else ""
    head = f"{verdict.runtime} {verdict.release}: "
    head += f"plays{evidence}" if verdict.plays else f"does not play{evidence}"
    if verdict.plays and verdict.since not in (None, verdict.release):
        head += f", as releases from {verdict.since} on do"
    lines = [f"{head} ({verdict.operators:,} operators)"]
    if verdict.unknown_release is not None:
        unknown = f"{verdict.runtime} {verdict.unknown_release} is not known"
        lines.insert(0, f"{unknown}; judged as {verdict.release}")
    lines += [f"  {problem}" for problem in verdict.problems]
    lines += [f"  {count:5d} × {name}, which it lacks" for name, count in _most(verdict.missing)]
    if verdict.on_fallback:
        most = _most(verdict.on_fallback)
        names = ", ".join(f"{count} × {name}" for name, count in most[:_NAMED])
        count = sum(verdict.on_fallback.values())
        more = ", …" if len(most) > _NAMED else ""
        lines.append(
            f"  it lacks {count:,} of them, which {verdict.fallback} computes: {names}{more}"
        )
    return [*lines, *([f"  {verdict.advice}"] if verdict.advice else [])]


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _lacking(need: _Needs, runtime: RuntimeRelease) -> Counter[str]:
    """Return the operators of a graph that a runtime has not itself."""
    lacking: Counter[str] = Counter()
    for (name, element), count in need.operators.items():
        if name not in runtime.operators:
            lacking[name] += count
        elif (typed := of_type(name, element)) in runtime.lacks:
            lacking[typed] += count
    if not runtime.file.functions:
        lacking.update(need.functions)
    return lacking


def _missing(needs: Sequence[_Needs], runtime: RuntimeRelease) -> dict[str, int]:
    """Return the operators that neither a runtime has nor the one behind it."""
    computing = runtime.fallback or runtime
    return dict(sum((_lacking(need, computing) for need in needs), Counter[str]()))


def _on_fallback(needs: Sequence[_Needs], runtime: RuntimeRelease) -> dict[str, int]:
    """Return the operators that the runtime behind another one computes for it."""
    if runtime.fallback is None:
        return {}
    lacking = sum((_lacking(need, runtime) for need in needs), Counter[str]())
    return dict(lacking - Counter(_missing(needs, runtime)))


def _problems(needs: Sequence[_Needs], runtime: RuntimeRelease, family: str) -> Iterator[str]:
    """Yield sentences on what keeps a model from playing, besides operators."""
    opset, ir = max(need.opset for need in needs), max(need.ir for need in needs)
    if runtime.opset is not None and opset > runtime.opset:
        yield (
            f"the graph has opset {opset}, and it opens up to {runtime.opset}; export the graph "
            f"with opset {runtime.opset} or lower"
        )
    if runtime.ir is not None and ir > runtime.ir:
        yield f"the graph has IR version {ir}, and it opens up to {runtime.ir}"
    sizes = [name for need in needs for name in need.open_sizes]
    if runtime.file.fixed_sizes and sizes:
        behind = runtime.file.fallback
        yield (
            f"the sizes of {', '.join(map(repr, sizes))} are not fixed, so nothing runs on it"
            f"{f' and {behind} computes everything' if behind else ''}; "
            "`export --fixed` fixes those of a voice"
        )
    keys = set(runtime.file.metadata.get(family, ())) - needs[0].metadata
    if keys:
        yield (
            f"the graph's metadata lacks {', '.join(sorted(keys))}, without which it ends; "
            "docs/runtimes.md adds them"
        )


def _refusals(model: OnnxGraph, runtime: RuntimeRelease) -> Iterator[str]:
    """Yield why the onnxruntime that is installed here does not open graphs, if it is the one."""
    installed = onnxruntime.__version__
    if runtime.name == _HERE and f"{installed}.".startswith(f"{runtime.release}."):
        for name, part in model.parts.items():
            try:
                open_session(model.written(name), part.spec, briefly=True)
            except ModelError as error:
                yield f"{installed} is installed here, and {error}"


def _advice(model: Model, runtime: RuntimeRelease, lacking: Mapping[str, int]) -> str | None:
    """Return a sentence on the scheme to use instead, where operators are lacking."""
    if not lacking:
        return None
    of_schemes = {name for name in lacking if _is_of_schemes(name)}
    if model.manifest is None or (of_schemes != set(lacking) and runtime.fallback is None):
        return None if runtime.fallback else "the original has them: no scheme takes them out"
    schemes = [scheme for scheme in runtime.file.schemes if not _is_made_by(model, scheme)]
    return f"compress the original with `{schemes[0]}` for it" if of_schemes and schemes else None


def _is_of_schemes(operator: str) -> bool:
    codes = operator.endswith((of_type("", "int8"), of_type("", "uint8")))
    name = operator.removeprefix(f"{STANDARD}.")
    return codes or name in _OF_SCHEMES or name == operator


def _is_made_by(model: Model, scheme: str) -> bool:
    """Return True if options of `quantize` are those that made an artifact."""
    assert model.manifest is not None
    words = scheme.split()
    form = words[words.index("--format") + 1] if "--format" in words else None
    same = model.manifest.scheme == words[words.index("--scheme") + 1]
    return same and form in (None, model.manifest.recipe.get("format"))


def _read_needs(model: onnx.ModelProto) -> _Needs:
    """Return what a graph asks of a runtime."""
    functions = {(function.domain, function.name) for function in model.functions}
    calls = Counter(
        _name(node)
        for node in nested_nodes(model.graph.node)
        if (node.domain, node.op_type) in functions
    )
    plain = inline_functions(model) if functions else model
    types = _element_types(plain)
    operators = Counter(
        (_name(node), types.get(node.input[0], "") if node.input else "")
        for node in nested_nodes(plain.graph.node)
        if node.op_type != "Constant"
    )
    return _Needs(
        operators=operators,
        functions=calls,
        opset=standard_opset(model),
        ir=model.ir_version,
        open_sizes=tuple(_open_sizes(model.graph)),
        metadata=frozenset(entry.key for entry in model.metadata_props),
    )


def _name(node: onnx.NodeProto) -> str:
    return f"{node.domain or STANDARD}.{node.op_type}"


def _with_quantized_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy that records the types of onnxruntime's integer operators, unknown to onnx."""
    copy = copy_model(model)
    stored = {tensor.name: tensor.data_type for tensor in copy.graph.initializer}
    for node in copy.graph.node:
        index = _ZERO_POINTS.get(node.op_type, len(node.input))
        if node.domain and index < len(node.input) and node.input[index] in stored:
            value = copy.graph.value_info.add(name=node.output[0])
            value.type.tensor_type.elem_type = stored[node.input[index]]
    return copy


def _element_types(model: onnx.ModelProto) -> dict[str, str]:
    """Return the element types of the main graph's tensors that are known or can be inferred."""
    # Types only refine the answer: a graph that cannot be inferred is judged by its operators.
    with suppress(shape_inference.InferenceError, ValueError, RuntimeError):
        model = shape_inference.infer_shapes(_with_quantized_types(model))
    names = {number: name.lower() for name, number in TensorProto.DataType.items()}
    types = element_types(model.graph)
    return {name: names[number] for name, number in types.items() if number}


def _open_sizes(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield inputs whose shape has a size that is not a number."""
    stored = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        shape = value.type.tensor_type.shape
        fixed = all(size.HasField("dim_value") for size in shape.dim)
        if value.name not in stored and not (fixed and value.type.tensor_type.HasField("shape")):
            yield value.name
