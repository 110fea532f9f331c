"""Components of a model, and how it was made if it is compressed."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from tts_compress.environment import describe_processor
from tts_compress.inspection.times import OTHER
from tts_compress.models.base import Model, OnnxGraph
from tts_compress.models.integers import count_integer_layers, find_hazards
from tts_compress.onnx.durations import length_outputs
from tts_compress.onnx.modules import WeightFinder, initializer_names, module_of
from tts_compress.terminal import human_bytes


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


def length_layers(model: Model) -> dict[str, list[str]]:
    """Return the layers that the length of the speech depends on, by component.

    They are found by following lengths back through each graph; a torch model has none.
    """
    if not isinstance(model, OnnxGraph):
        return {}
    found: dict[str, list[str]] = {}
    for name, part in model.parts.items():
        graph = model.graph(name)
        deciding = length_outputs(graph, part.lengths)
        weights, initializers = WeightFinder(graph.graph), initializer_names(graph.graph)
        for node in graph.graph.node:
            if deciding.intersection(node.output) and weights.find_all(node):
                module = module_of(node, initializers)
                component = name or module.split(".")[0] or "unnamed"
                found.setdefault(component, []).append(module or node.name or node.output[0])
    return found


def inspection_tables(found: Mapping[str, Any]) -> list[RenderableType]:
    """Return an inspection as text and tables for a terminal."""
    head = f"{found['spec']}: family {found['family']}, scheme {found['scheme']}"
    properties = ", ".join(f"{name} {value}" for name, value in found["properties"].items())
    timed = found["other_time_share"] is not None
    table = Table("component", "role", box=None, pad_edge=False)
    for column in ("parameters", "bytes", *(["time"] if timed else [])):
        table.add_column(column, justify="right")
    decided = any(part["length_layers"] for part in found["components"])
    for column in ("operators", *(["lengths"] if decided else [])):
        table.add_column(column)
    for part in found["components"]:
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
        table.add_row(OTHER, "", "", "", f"{found['other_time_share']:.1%}", "")
    counts = [f"  {count:4d} × {label}" for label, count in found["counts"].items()]
    kernels = found["processor"]["integer_kernels"]
    machine = f"integer layers: {found['integer_layers']['count']}; kernels here: {kernels}"
    warnings = [f"warning: {text}" for text in found["warnings"]]
    return [head, *([properties] if properties else []), table, *counts, machine, *warnings]


def _some_of(part: Mapping[str, Any]) -> str:
    """Return how many of a component's layers decide lengths; empty where none does."""
    count = len(part["length_layers"])
    return f"{count} of {sum(part['operators'].values())}" if count else ""
