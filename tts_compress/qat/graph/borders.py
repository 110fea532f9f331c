"""Where flow and decoder begin and end in the graph of a Piper voice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tts_compress.errors import QuantizationError
from tts_compress.onnx.graph import Graph, tensors_read
from tts_compress.onnx.modules import initializer_names, module_of

if TYPE_CHECKING:
    import onnx

__all__ = ["Borders", "find_borders"]

_SPEAKER = "sid"
"""The one input of a voice that is no text and no noise: what hangs on it alone can be trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Borders:
    """Tensors between the components of a voice, by their names in its graph."""

    prior: str
    """What the flow is given: a sample of the distribution that the text makes, (B, C, T)."""

    deviation: str
    """The standard deviation of that distribution, before it is scaled, (B, C, T)."""

    latent: str
    """What the flow gives to the decoder, (B, C, T)."""

    audio: str
    """The graph's output."""

    inputs: tuple[str, ...]
    """Everything that flow and decoder are computed from, `prior` first: masks where the graph has
    them, and the speaker's number."""


def find_borders(model: onnx.ModelProto) -> Borders:
    """Return where flow and decoder begin and end.

    Args:
        model: A prepared graph of a Piper voice, in FP32.

    Raises:
        QuantizationError: It is not built like one.
    """
    graph = Graph(model)
    prior, deviation = _sample(graph)
    latent = _decoder_input(graph, initializer_names(model.graph))
    audio = graph.outputs[0]
    return Borders(
        prior=prior,
        deviation=deviation,
        latent=latent,
        audio=audio,
        inputs=(prior, *_others(graph, prior, audio)),
    )


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


def _decoder_input(graph: Graph, initializers: frozenset[str]) -> str:
    for node in graph.nodes:
        if node.op_type == "Conv" and module_of(node, initializers).endswith("dec.conv_pre"):
            return str(node.input[0])
    raise QuantizationError(
        "the graph has no convolution of a module 'dec.conv_pre', as the decoder of a Piper voice "
        "begins with; it can be trained as a bare graph"
    )


def _others(graph: Graph, prior: str, audio: str) -> list[str]:
    """Return what else the audio hangs on, as near to the prior as it can be cut."""
    behind = {prior}
    for node in graph.nodes:
        if behind.intersection(tensors_read(node)):
            behind.update(node.output)
    found: dict[str, None] = {}
    waiting, seen = [audio], set[str]()
    while waiting:
        tensor = waiting.pop()
        if tensor in seen or tensor == prior:
            continue
        seen.add(tensor)
        sources = set() if tensor in behind else _sources(graph, tensor)
        if sources - {_SPEAKER} or sources == {tensor}:
            found[tensor] = None
        else:
            maker = graph.producer(tensor)
            waiting += sorted(tensors_read(maker)) if maker is not None else []
    return list(found)


def _sources(graph: Graph, tensor: str) -> set[str]:
    """Return the inputs of the graph that a tensor is computed from."""
    found: set[str] = set()
    waiting, seen = [tensor], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        node = graph.producer(name)
        if node is not None:
            waiting += tensors_read(node)
        elif name in graph.inputs and graph.constant(name) is None:
            found.add(name)
    return found
