"""Parts of ONNX graphs, such as flow and decoder of a Piper voice, as torch modules.

They can be trained.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx
import torch
from onnx import helper
from torch import Tensor, nn

from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import LEVELS
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.modules import initializer_names, module_of
from tts_compress.onnx.nodes import sort_nodes, tensors_read
from tts_compress.onnx.rewrite.verified_replace import upstream
from tts_compress.qat.fake_quantize import ActivationFakeQuantize, pass_through
from tts_compress.qat.graph.operators import find_operator, read_tensor

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


_WEIGHTED = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization", "MatMul"}
)
"""Operators whose constants are trained; any other constant is part of what the graph means."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The values that codes stand for: those of a quantizer, times a factor."""

    quantizer: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """The rounding at one node."""

    inputs: Mapping[int, str] = field(default_factory=dict)
    """Quantizers of its inputs, weights included, by position; for this node alone."""

    output: str | None = None
    """Quantizer of its first output, for all who read it."""

    kept: Grid | None = None
    """The codes of its input, where its output stays in them."""


class _Step(NamedTuple):
    compute: Callable[..., tuple[Tensor, ...]]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    last_read: tuple[str, ...]
    """Tensors that nobody reads behind this step."""

    rounding: Rounding


class GraphNetwork(nn.Module):
    """A subgraph of an ONNX graph, computed in torch.

    The constants of its weighted operators are parameters, unless the rest of the graph reads them
    too; gradients flow from every output to every input and parameter.

    Args:
        subgraph: The nodes between two sets of tensors.
        roundings: Quantizers at each node that has any, by the node's first output.
        quantizers: The modules that round, by name; they train, move and are saved with the
            network.
    """

    def __init__(
        self,
        subgraph: Subgraph,
        *,
        roundings: Mapping[str, Rounding] | None = None,
        quantizers: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.inputs, self.outputs = subgraph.inputs, subgraph.outputs
        graph = subgraph.model.graph
        weighted = [node for node in graph.node if node.op_type in _WEIGHTED]
        trained = {t for n in weighted for t in n.input[n.op_type != "MatMul" :]} - subgraph.shared
        constants = {tensor.name: read_tensor(tensor) for tensor in graph.initializer}
        self._real = [name for name, value in constants.items() if value.is_floating_point()]
        # Sizes and positions stay on the processor, wherever the data moves.
        self._positions = {n: value for n, value in constants.items() if n not in self._real}
        for name in self._real:
            if hasattr(self, _attribute(name)):
                raise QuantizationError(f"two constants of the graph are called like '{name}'")
            if name in trained:
                self.register_parameter(_attribute(name), nn.Parameter(constants[name]))
            else:
                self.register_buffer(_attribute(name), constants[name])
        self.quantizers = nn.ModuleDict(
            {_attribute(name): module for name, module in (quantizers or {}).items()}
        )
        self._steps = _steps(subgraph.model, roundings or {})

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs for the inputs, both in the order of their names."""
        tensors: dict[str, Tensor | None] = {"": None, **self._positions}
        tensors |= {name: getattr(self, _attribute(name)) for name in self._real}
        tensors |= zip(self.inputs, values, strict=True)
        for step in self._steps:
            arguments = [tensors[name] for name in step.reads]
            for position, quantizer in step.rounding.inputs.items():
                arguments[position] = self.quantizers[_attribute(quantizer)](arguments[position])
            first, *others = step.compute(*arguments)
            if step.rounding.output is not None:
                first = self.quantizers[_attribute(step.rounding.output)](first)
            if step.rounding.kept is not None:
                first = self._on_grid(first, step.rounding.kept)
            # A node may make more than it is asked for.
            outputs = zip(step.makes, (first, *others), strict=False)
            tensors |= {name: tensor for name, tensor in outputs if name}
            for name in step.last_read:
                del tensors[name]
        return tuple(value for name in self.outputs if (value := tensors[name]) is not None)

    def quantizer(self, name: str) -> nn.Module | None:
        """Return a quantizer by its name; None where this part of the graph has no use for it."""
        return dict(self.quantizers.items()).get(_attribute(name))

    def trained(self, name: str) -> nn.Parameter | None:
        """Return a constant by its name in the graph; None where it is not trained."""
        return self._parameters.get(_attribute(name))

    def _on_grid(self, values: Tensor, grid: Grid) -> Tensor:
        """Return values rounded to the codes of a quantizer, which gets no gradients from here."""
        quantizer = self.quantizer(grid.quantizer)
        assert isinstance(quantizer, ActivationFakeQuantize)
        if not quantizer.fake_quant_enabled[0]:
            return values
        low, high = quantizer.limits()
        step = (high - low) / LEVELS or 1.0
        zero, step = round(-low / step), step * grid.factor
        # A tenth of all codes has a tenth in the middle between two others: as integer kernels
        # do, codes are rounded, which count from 0, and not multiples of the step.
        codes = torch.div(values.detach(), step).add_(zero).round_().clamp_(0, LEVELS)
        return pass_through(values, codes.sub_(zero).mul_(step))


def _steps(model: onnx.ModelProto, roundings: Mapping[str, Rounding]) -> list[_Step]:
    graph = model.graph
    seen = {"", *(value.name for value in graph.output), *(t.name for t in graph.initializer)}
    steps: list[_Step] = []
    for node in reversed(graph.node):
        last = dict.fromkeys(name for name in (*node.input, *node.output) if name not in seen)
        seen |= last.keys()
        rounding = roundings.get(node.output[0], Rounding())
        names = (tuple(node.input), tuple(node.output), tuple(last))
        steps.append(_Step(find_operator(node), *names, rounding))
    return steps[::-1]


def _attribute(name: str) -> str:
    """Return a graph's name as one that torch accepts of a parameter."""
    return "graph/" + name.replace(".", "/")
