"""Components of a model, how it was made, and where its time goes, also beside its original."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table

from tts_compress.environment import describe_processor
from tts_compress.errors import ModelError, model_errors
from tts_compress.evaluation.intervals import take_turns
from tts_compress.models.base import GraphModel, Model, OnnxGraph, TorchModel
from tts_compress.models.execution import PROCESSOR, execution_of
from tts_compress.models.integers import count_integer_layers, find_hazards
from tts_compress.models.onnx_voice import OnnxVoice
from tts_compress.onnx.modules import WeightFinder, initializer_names, module_of
from tts_compress.onnx.precision import length_outputs
from tts_compress.onnx.session import (
    Feeds,
    group_of,
    kernel_seconds,
    open_session,
    run_session,
)
from tts_compress.terminal import human_bytes

if TYPE_CHECKING:
    from torch import nn

OTHER = "other"
"""Name of the time outside all components: text to phonemes, sampling, operators between them."""

_SHORT_TEXT = "Hello there."

_LONG_TEXT = "Hello there, and thank you for listening to this."
"""Voices of languages other than English pronounce it as they can."""

_ROUNDS = 5

_QUICK = 100_000_000
"""Weights of a model that speaks a short text within seconds."""

_LEVELS = 2
"""Levels of a component's submodules that are timed too: some systems call methods of a component
that have no hooks, and these call its submodules."""

Seconds = dict[str | None, float]
"""Seconds by component; under None those outside all components."""


def inspect_model(model: Model, shares: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return components, origin and hazards of a model on this processor, as plain data.

    Args:
        model: Any model.
        shares: Shares of the time, as `time_shares` returns them; None where not measured.
    """
    manifest, processor = model.manifest, describe_processor()
    layers, deciding = count_integer_layers(model), length_layers(model)
    return {
        "spec": model.spec,
        "family": model.family,
        "scheme": manifest.scheme if manifest else "fp32",
        "properties": dict(model.describe()),
        "components": [
            asdict(part)
            | {"operators": dict(part.operators), "length_layers": deciding.get(part.name, [])}
            | ({"time_share": shares[part.name]} if shares else {})
            for part in model.components().values()
        ],
        "other_time_share": shares[OTHER] if shares else None,
        "counts": manifest.counts if manifest else {},
        "source": asdict(manifest.source) if manifest else None,
        "processor": {"model": processor.model, "integer_kernels": processor.integer_kernels},
        "integer_layers": asdict(layers),
        "warnings": list(find_hazards(layers, processor)),
    }


def cut_stages(voice: OnnxVoice) -> dict[str, Any]:
    """Return the memory that each part of a voice that is cut in time needs, as plain data.

    `encoder` runs once for a text, `stages` chunk by chunk; `weight_bytes` are read from the file.
    """
    cut = voice.cut()
    weights = [sum(t.ByteSize() for t in model.graph.initializer) for model in cut.models]
    encoder = sum(t.ByteSize() for t in cut.encoder.graph.initializer) if cut.encoder else 0
    return {
        "encoder": {"weight_bytes": encoder},
        "stages": [
            {"share": cut.share, **asdict(stage), "weight_bytes": count}
            for stage, count in zip(cut.stages, weights, strict=True)
        ],
    }


def stage_table(cut: Mapping[str, Any]) -> RenderableType:
    """Return the parts as a table for a terminal; steps are those of what each stage reads."""
    numbers = ("before", "behind", "makes", "values a step, at most", "weights")
    table = Table("stage reads", box=None)
    for name in numbers:
        table.add_column(name, justify="right")
    encoder = human_bytes(cut["encoder"]["weight_bytes"])
    table.add_row("the text, once", *[""] * (len(numbers) - 1), encoder)
    for stage in cut["stages"]:
        steps = (stage[name] for name in ("before", "after", "hop", "widest"))
        weights = human_bytes(stage["weight_bytes"])
        table.add_row(", ".join(stage["reads"]), *(f"{number:,}" for number in steps), weights)
    return table


def length_layers(model: Model) -> dict[str, list[str]]:
    """Return the layers that the length of the speech depends on, by component.

    They are found by following lengths back through each graph; a torch model has none.
    """
    if not isinstance(model, OnnxGraph):
        return {}
    layers: dict[str, list[str]] = {}
    for name, part in model.parts.items():
        graph = model.graph(name)
        deciding = length_outputs(graph, part.lengths)
        weights, initializers = WeightFinder(graph.graph), initializer_names(graph.graph)
        for node in graph.graph.node:
            if deciding.intersection(node.output) and weights.find_all(node):
                module = module_of(node, initializers)
                component = name or module.split(".")[0] or "unnamed"
                layers.setdefault(component, []).append(module or node.name or node.output[0])
    return layers


def inspection_tables(inspection: Mapping[str, Any]) -> list[RenderableType]:
    """Return an inspection as text and tables for a terminal."""
    head = f"{inspection['spec']}: family {inspection['family']}, scheme {inspection['scheme']}"
    properties = ", ".join(f"{name} {value}" for name, value in inspection["properties"].items())
    timed = inspection["other_time_share"] is not None
    table = Table("component", "role", box=None, pad_edge=False)
    for column in ("parameters", "bytes", *(["time"] if timed else [])):
        table.add_column(column, justify="right")
    decided = any(part["length_layers"] for part in inspection["components"])
    for column in ("operators", *(["lengths"] if decided else [])):
        table.add_column(column)
    for part in inspection["components"]:
        operators = ", ".join(f"{count} {name}" for name, count in part["operators"].items())
        table.add_row(
            part["name"],
            part["role"],
            f"{part['parameters']:,}",
            human_bytes(part["size_bytes"]),
            *([f"{part['time_share']:.1%}"] if timed else []),
            operators,
            *([_some_of(part)] if decided else []),
        )
    if timed:
        table.add_row(OTHER, "", "", "", f"{inspection['other_time_share']:.1%}", "")
    counts = [f"  {count:4d} × {label}" for label, count in inspection["counts"].items()]
    kernels = inspection["processor"]["integer_kernels"]
    machine = f"integer layers: {inspection['integer_layers']['count']}; kernels here: {kernels}"
    warnings = [f"warning: {text}" for text in inspection["warnings"]]
    return [head, *([properties] if properties else []), table, *counts, machine, *warnings]


def _some_of(part: Mapping[str, Any]) -> str:
    """Return how many of a component's layers decide lengths; empty where none does."""
    count = len(part["length_layers"])
    return f"{count} of {sum(part['operators'].values())}" if count else ""


def can_be_timed(model: Model) -> bool:
    """Return True if a model speaks and its components can be timed separately."""
    return isinstance(model, GraphModel | TorchModel)


def is_quick(model: Model) -> bool:
    """Return True if a model is small enough to be timed without being asked to."""
    return sum(part.parameters for part in model.components().values()) <= _QUICK


def time_shares(model: Model, text: str = _SHORT_TEXT) -> dict[str, float]:
    """Return each component's share of the time that speaking takes, in [0, 1].

    Args:
        model: One that speaks; one that needs a prompt has it.
        text: Spoken twice; only the second time counts, with nothing left to load or to prepare.

    Returns:
        Shares by component, and under `OTHER` the share outside all of them; the sum is 1.
    """
    if isinstance(model, GraphModel):
        seconds = _graph_seconds(model, text)
    elif isinstance(model, TorchModel):
        seconds = _torch_seconds(model, text)
    else:
        raise ModelError(f"'{model.spec}' speaks no texts, so nothing can be timed")
    total = sum(seconds.values())
    shares = {name: seconds.get(name, 0.0) / total for name in model.components()}
    return shares | {OTHER: seconds.get(None, 0.0) / total}


def _graph_seconds(model: GraphModel, text: str) -> Seconds:
    """Return the seconds that operators take, by onnxruntime's own profile.

    A graph that follows another is one component.
    """
    components = [name for name in model.components() if name not in model.parts]
    seconds: Seconds = dict.fromkeys([*components, None], 0.0)
    for name, part in model.parts.items():
        calls = list(model.calibration_calls([text], seed=0, part=name, every=True))
        spent = kernel_seconds(model.graph(name), calls, part.spec)
        if name:
            seconds[name] = sum(spent.values())
            continue
        for operator, alone in spent.items():
            seconds[group_of(operator, components) or None] += alone
    return seconds


def _torch_seconds(model: TorchModel, text: str) -> Seconds:
    """Return the seconds that calls take; one within another counts for the inner component."""
    from tts_compress.torch.layers.module_surgery import intercepted

    model.synthesize(text)
    clock = _Clock()
    root = model.root()
    with ExitStack() as stack:
        for component, module, method in _timed_calls(model, root):
            stack.enter_context(intercepted(module, method, clock.timing(component)))
        with clock.inside(None):
            model.synthesize(text)
    return clock.seconds


def _timed_calls(model: TorchModel, root: "nn.Module") -> Iterator[tuple[str, "nn.Module", str]]:
    """Yield component, module and method of each timed call."""
    owners: dict[nn.Module, str] = {}
    for name in sorted(model.components(), key=len):  # a component inside another comes after it
        owners |= dict.fromkeys(_timed_modules(root.get_submodule(name), _LEVELS), name)
    for module, name in owners.items():
        yield name, module, "forward"
    for name, methods in model.named_calls().items():
        for method in methods:
            parent, _, attribute = method.rpartition(".")
            yield name, root.get_submodule(parent), attribute


def _timed_modules(module: "nn.Module", levels: int) -> Iterator["nn.Module"]:
    from torch import nn

    # Lists of modules are never called, their items are.
    inside = levels if isinstance(module, nn.ModuleList | nn.ModuleDict) else levels - 1
    if inside != levels:
        yield module
    if levels:
        for child in module.children():
            yield from _timed_modules(child, inside)


class _Clock:
    """Attributes each moment to the component that was entered last."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}
        self._inside: list[str | None] = []
        self._since = 0.0

    @contextmanager
    def inside(self, component: str | None) -> Iterator[None]:
        """Attribute the block to a component, or to none."""
        self._count()
        self._inside.append(component)
        try:
            yield
        finally:
            self._count()
            self._inside.pop()

    def timing(self, component: str) -> Callable[..., Any]:
        """Return a replacement of methods whose calls count for a component."""

        def call(method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
            with self.inside(component):
                return method(*arguments, **keywords)

        return call

    def _count(self) -> None:
        """Add the time since the last count to the component that is running."""
        now = perf_counter()
        if self._inside:
            component = self._inside[-1]
            self.seconds[component] = self.seconds.get(component, 0.0) + now - self._since
        self._since = now


def speed_ratio(original: Model, small: Model, feeds: Feeds | None = None) -> float | None:
    """Return how many times as fast a compressed ONNX model runs, on one thread.

    The two take turns; the medians of five turns are compared, in a voice by the length of what it
    spoke. A few per cent are the machine's noise.

    Returns:
        The ratio; None for models that are no graphs, and for such a graph without inputs.
    """
    if isinstance(original, GraphModel) and isinstance(small, GraphModel):
        runs = (_speaking(original), _speaking(small))
    elif feeds is not None and isinstance(original, OnnxGraph) and isinstance(small, OnnxGraph):
        runs = (_running(original, feeds), _running(small, feeds))
    else:
        return None
    for run in runs:
        run()  # the first one also allocates
    before, after = zip(*take_turns(runs, _ROUNDS), strict=True)
    return float(median(before) / median(after))


def _speaking(voice: GraphModel) -> Callable[[], float]:
    """Return a run of a voice's own runtime: seconds for a second of audio."""
    runtime, now = voice.open_runtime(threads=1), _clock(voice)

    def run() -> float:
        start = now()
        with model_errors(f"'{voice.spec}' cannot be run"):
            audio = runtime.speak(_LONG_TEXT)
        return (now() - start) / max(audio.duration_s, 1e-3)

    return run


def _running(model: OnnxGraph, feeds: Feeds) -> Callable[[], float]:
    """Return a run of a graph: seconds."""
    session, now = open_session(model.graph(), model.spec, threads=1), _clock(model)

    def run() -> float:
        start = now()
        run_session(session, feeds, model.spec)
        return now() - start

    return run


def _clock(model: Model) -> Callable[[], float]:
    """Return this process's time on the processor, which a busy machine does not lengthen.

    Where a GPU or another device computes, it is the time that passes.
    """
    return process_time if execution_of(model) == PROCESSOR else perf_counter
