"""Parts of ONNX graphs: between given tensors, and flow and decoder of a Piper voice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from tts_compress.errors import QuantizationError
from tts_compress.onnx.graph import Graph, copy_model, sort_nodes, tensors_read
from tts_compress.onnx.modules import initializer_names, module_of
from tts_compress.onnx.rewrite.verified_replace import upstream

SPEAKER = "sid"
"""The one input of a voice that is no text and no noise: the id of a speaker, shape `[1]`. Parts
that use it alone are trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgraph:
    """The part of a graph that computes outputs from inputs, and nothing more."""

    model: onnx.ModelProto
    shared: frozenset[str]
    """Its initializers that other operators of the graph read, too."""

    @property
    def inputs(self) -> list[str]:
        """Names of its inputs."""
        return [value.name for value in self.model.graph.input]

    @property
    def outputs(self) -> list[str]:
        """Names of its outputs."""
        return [value.name for value in self.model.graph.output]


def extract_subgraph(
    model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]
) -> Subgraph:
    """Return the part of a graph between given tensors."""
    graph = Graph(copy_model(model))
    stored = initializer_names(model.graph)
    for node in graph.nodes:
        node.output[:] = ["" if tensor in inputs else tensor for tensor in node.output]
    graph.outputs = list(outputs)
    everything = graph.nodes
    part = graph.finish()
    inside = {tensor for node in part.graph.node for tensor in node.output if tensor}
    read = {tensor for node in part.graph.node for tensor in tensors_read(node)}
    if missing := sorted(read.union(outputs) - inside - stored - set(inputs)):
        raise QuantizationError(
            f"that part of the graph also depends on {', '.join(missing)}; name the inputs of the "
            "graph among them, or tensors behind them, as inputs of the part"
        )
    others = (node for node in everything if not inside.intersection(node.output))
    shared = set[str]().union(*map(tensors_read, others)) & stored & read
    for values, wanted in ((part.graph.input, inputs), (part.graph.output, outputs)):
        del values[:]
        values.extend(helper.make_empty_tensor_value_info(name) for name in wanted)
    return Subgraph(model=part, shared=frozenset(shared))


def last_part(
    model: onnx.ModelProto, fits: Callable[[onnx.NodeProto], bool], outputs: Sequence[str]
) -> Subgraph:
    """Return the part that computes outputs, back to operators that do not fit.

    Its inputs are those of the graph, and then the tensors that these operators return. Where all
    operators fit, the part is everything that the outputs depend on.
    """
    graph = Graph(model)
    sources = set(graph.inputs) - initializer_names(model.graph)
    borders = sources.union(*(node.output for node in graph.nodes if not fits(node)))
    ends = {end for name in outputs for end in upstream(graph, name, borders)[1]} & borders
    if outside := sorted(ends.intersection(outputs) - sources):
        raise QuantizationError(
            f"output {outside[0]!r} is made by an operator that cannot be trained, so nothing "
            "before it can"
        )
    computed = [tensor for node in sort_nodes(graph.nodes) for tensor in node.output]
    inputs = [tensor for tensor in (*graph.inputs, *computed) if tensor in ends]
    return extract_subgraph(model, inputs, outputs)


def find_passage(part: Subgraph) -> str | None:
    """Return the first tensor through which all of a part's inputs reach its first output.

    None where only an input or the output is such a tensor.
    """
    nodes, output = sort_nodes(list(part.model.graph.node)), part.outputs[0]
    varying = set(part.inputs)
    for node in nodes:
        if not varying.isdisjoint(tensors_read(node)):
            varying.update(node.output)
    passage, crossed = output, {output}
    for node in reversed(nodes):
        if crossed.isdisjoint(node.output):
            continue
        crossed = crossed.difference(node.output) | (tensors_read(node) & varying)
        if len(crossed) == 1 and crossed.isdisjoint(part.inputs):
            (passage,) = crossed
    return None if passage == output else passage


def voice_subgraph(model: onnx.ModelProto) -> tuple[Subgraph, str]:
    """Return flow and decoder of a Piper voice, and the deviation of the prior that they start at.

    The prior is a sample of the distribution that the text makes, (B, C, T). It is the first input;
    besides there are masks, where the graph has them, and the speaker. Outputs are the latent that
    the flow gives to the decoder, (B, C, T), and the audio. The deviation is a tensor of the graph.
    """
    graph = Graph(model)
    prior, deviation = _sample(graph)
    audio = graph.outputs[0]
    inputs = [prior, *_other_inputs(graph, prior, audio)]
    return extract_subgraph(model, inputs, [_decoder_input(graph), audio]), deviation


def _sample(graph: Graph) -> tuple[str, str]:
    """Return mean + noise · deviation · scale, and the deviation."""
    for random in (node for node in graph.nodes if node.op_type == "RandomNormalLike"):
        tensor, deviation = random.output[0], None
        reader = graph.only_reader(tensor)
        while reader is not None and reader.op_type == "Mul":
            for factor in reader.input:
                maker = graph.producer(factor)
                deviation = factor if maker is not None and maker.op_type == "Exp" else deviation
            tensor = reader.output[0]
            reader = graph.only_reader(tensor)
        if reader is not None and reader.op_type == "Add" and deviation is not None:
            return reader.output[0], deviation
    raise QuantizationError(
        "the graph has no sum of a mean and noise times a deviation, as a Piper voice has before "
        "its flow; it can be trained as a bare graph"
    )


def _decoder_input(graph: Graph) -> str:
    initializers = initializer_names(graph.model.graph)
    for node in graph.nodes:
        if node.op_type == "Conv" and module_of(node, initializers).endswith("dec.conv_pre"):
            return str(node.input[0])
    raise QuantizationError(
        "the graph has no convolution of a module 'dec.conv_pre', as the decoder of a Piper voice "
        "begins with; it can be trained as a bare graph"
    )


def _other_inputs(graph: Graph, prior: str, audio: str) -> list[str]:
    """Return the other tensors the audio depends on, cut as near to the prior as possible."""
    sources = {name: {name} for name in graph.inputs if graph.constant(name) is None}
    for node in sort_nodes(graph.nodes):
        behind = set().union(*(sources.get(tensor, set()) for tensor in tensors_read(node)))
        sources |= {tensor: {prior} if tensor == prior else behind for tensor in node.output}
    others: dict[str, None] = {}
    waiting, seen = [audio], {prior}
    while waiting:
        tensor = waiting.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        behind = sources.get(tensor, set())
        maker = graph.producer(tensor)
        if maker is not None and (prior in behind or behind <= {SPEAKER}):
            waiting += sorted(tensors_read(maker))
        elif behind:
            others[tensor] = None
    return list(others)
