"""The reference with one component swapped for the compressed one (used by `--blame`)."""

from collections.abc import Iterator
from dataclasses import replace

import onnx
from onnx import helper

from tts_compress.artifact import Manifest
from tts_compress.errors import ModelError
from tts_compress.models.base import GraphModel, TorchModel, TTSModel
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.modules import WeightFinder, module_of
from tts_compress.onnx.nodes import rename_read, tensors_read
from tts_compress.onnx.quantize.convert import convertible_graph
from tts_compress.onnx.quantize.operators import ROUNDED
from tts_compress.recipes.formats import Activations, Weights

_PREFIX = "compressed/"
"""Put before the names of what comes from the compressed graph."""


def compressed_components(candidate: TTSModel) -> list[str]:
    """Return the names of the components that a recipe changed, in the order data flows."""
    if candidate.manifest is None:
        raise ModelError(
            f"'{candidate.spec}' has no manifest, so that nobody knows what was compressed in it; "
            "components are compared of artifacts that `tts-compress quantize` or `qat` wrote"
        )
    changed = [
        layer.module
        for layer in candidate.manifest.layers
        if (layer.weights, layer.activations) != (Weights.FLOAT32, Activations.NONE)
    ]
    components = [n for n in candidate.components() if any(_is_part(m, n) for m in changed)]
    if not components:
        raise ModelError(f"no component of '{candidate.spec}' is compressed")
    return components


def hybrids(
    reference: TTSModel, candidate: TTSModel, components: list[str]
) -> Iterator[tuple[str, TTSModel]]:
    """Yield for each component the reference with that of the candidate, as it is there."""
    manifest = candidate.manifest
    assert manifest is not None, "compressed components are those of a manifest"
    if isinstance(reference, GraphModel) and isinstance(candidate, GraphModel):
        yield from _graph_hybrids(reference, candidate, manifest, components)
    elif isinstance(reference, TorchModel) and isinstance(candidate, TorchModel):
        for name in components:
            yield name, _torch_hybrid(reference, candidate, name)
    else:
        raise ModelError(
            f"'{candidate.spec}' and '{reference.spec}' are not models of one kind; give the "
            "reference that the candidate was made from"
        )


def _graph_hybrids(
    reference: GraphModel, candidate: GraphModel, manifest: Manifest, components: list[str]
) -> Iterator[tuple[str, TTSModel]]:
    """Yield hybrids of a graph's components, and of graphs that follow it, each as a whole."""
    base: onnx.ModelProto | None = None
    for name in components:
        if name in candidate.parts:
            if name not in reference.parts:
                raise ModelError(
                    f"'{reference.spec}' has no graph '{name}', but '{candidate.spec}'"
                )
            changed = {name: candidate.graph(name)}
        else:
            if base is None:
                form = manifest.recipe["format"]
                base = convertible_graph(reference.graph(), form, batch_one=True).finish()
            changed = {"": with_component(base, candidate.graph(), name)}
        yield name, reference.with_graphs(changed, _only(manifest, name))


def _torch_hybrid(reference: TorchModel, candidate: TorchModel, name: str) -> TorchModel:
    from tts_compress.torch.layers.module_surgery import (
        copy_sharing_tensors,
        normalize,
        replace_module,
    )

    # As a compressed model is: so is it restored from its file.
    root = normalize(copy_sharing_tensors(reference.root())).eval()
    root = replace_module(root, name, candidate.root().get_submodule(name))
    assert candidate.manifest is not None
    return reference.with_root(root, _only(candidate.manifest, name))


def _only(manifest: Manifest, component: str) -> Manifest:
    """Return a manifest with the layers of one component."""
    layers = tuple(layer for layer in manifest.layers if _is_part(layer.module, component))
    return replace(manifest, layers=layers, counts={}, files={})


def _is_part(module: str, component: str) -> bool:
    return module == component or module.startswith((f"{component}.", f"{component}:"))


class _Part:
    """One of the two graphs, and the operators and constants taken from it."""

    def __init__(self, model: onnx.ModelProto, prefix: str) -> None:
        self.graph = Graph(model)
        self.prefix = prefix
        self.taken: dict[str, onnx.NodeProto] = {}
        """Copies of operators by their first output."""

        self.constants: dict[str, None] = {}

    def holds(self, tensor: str) -> bool:
        """Return True if the graph computes or stores a tensor; an input is neither."""
        return self.graph.producer(tensor) is not None or tensor in self.graph.initializers

    def named(self, tensor: str) -> str:
        """Return the name that a tensor of this graph has in the result."""
        return f"{self.prefix}{tensor}" if tensor and self.holds(tensor) else tensor

    def has_strays(self, component: str, *, inside: bool) -> bool:
        """Return True if other weights were taken than those of a component, or of all others."""
        weights = WeightFinder(self.graph.model.graph)
        return any(
            (node.output[0] in self.taken) != ((self.component(node) == component) == inside)
            for node in self.graph.nodes
            if weights.find(node) is not None
        )

    def component(self, node: onnx.NodeProto) -> str:
        """Return the component of an operator; empty where it is unknown."""
        return module_of(node, self.graph.initializers.keys()).split(".")[0]

    def take(self, node: onnx.NodeProto, names: dict[str, str]) -> None:
        """Copy an operator that reads tensors by other names, also in its branches."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{self.prefix}{node.name}"
        copy.output[:] = [self.named(tensor) for tensor in node.output]
        rename_read(copy, names)
        self.taken[node.output[0]] = copy


def with_component(
    original: onnx.ModelProto, compressed: onnx.ModelProto, component: str
) -> onnx.ModelProto:
    """Return the original graph with one component of the compressed one.

    Tensors that both compute under one name are equal but for rounding; there the result goes from
    one graph to the other. Operators of no component hold no weights and are the original's.

    Args:
        original: The FP32 graph in the form that was compressed: prepared, and rewritten if that
            one was.
        compressed: The compressed form of it.
        component: The first part of the names of the component's modules.
    """
    base, donor = _Part(original, ""), _Part(compressed, _PREFIX)

    def source(tensor: str, reader: _Part) -> tuple[_Part, str]:
        producer = base.graph.producer(tensor)
        if producer is None or donor.graph.producer(tensor) is None:
            return reader, tensor
        # One draw of noise serves both.
        if base.component(producer) != component or producer.op_type.startswith("Random"):
            return base, tensor
        rounded = f"{tensor}{ROUNDED}"
        return donor, rounded if reader is base and donor.holds(rounded) else tensor

    waiting = [source(name, base) for name in base.graph.outputs]
    tensors = [part.named(tensor) for part, tensor in waiting]
    results = dict(zip(base.graph.outputs, tensors, strict=True))
    while waiting:
        part, tensor = waiting.pop()
        if tensor in part.graph.initializers:
            part.constants[tensor] = None
        node = part.graph.producer(tensor)
        if node is not None and node.output[0] not in part.taken:
            sources = {read: source(read, part) for read in sorted(tensors_read(node))}
            waiting += sources.values()
            part.take(node, {read: owner.named(name) for read, (owner, name) in sources.items()})
    if base.has_strays(component, inside=False) or donor.has_strays(component, inside=True):
        raise ModelError(
            f"component '{component}' cannot be parted from its neighbours in the compressed graph"
        )
    return _assembled(base, donor, results)


def _assembled(base: _Part, donor: _Part, results: dict[str, str]) -> onnx.ModelProto:
    """Return the model that consists of the parts taken from both graphs.

    Args:
        base: The original.
        donor: The compressed one.
        results: For each output the tensor of the new model that holds it.
    """
    model, compressed = copy_model(base.graph.model), donor.graph.model
    graph = model.graph
    del graph.node[:], graph.initializer[:]
    model.ir_version = max(model.ir_version, compressed.ir_version)
    names = {(function.domain, function.name) for function in model.functions}
    model.functions.extend(f for f in compressed.functions if (f.domain, f.name) not in names)
    for part in (base, donor):
        for name in part.constants:
            stored = graph.initializer.add()
            stored.CopyFrom(part.graph.initializers[name])
            stored.name = part.named(name)
        # In the order of their graph: noise is numbered by it.
        copies = (part.taken.get(node.output[0]) for node in part.graph.nodes)
        graph.node.extend(copy for copy in copies if copy is not None)
    graph.node.extend(
        helper.make_node("Identity", [tensor], [output], output)
        for output, tensor in results.items()
        if tensor != output
    )
    joined = Graph(model)
    for opset in compressed.opset_import:
        joined.require_opset(opset.domain, opset.version)
    return joined.finish()
