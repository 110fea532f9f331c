"""Operators with weights, and the modules of the original network that they came from."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from tts_compress.artifact import LayerRecord
from tts_compress.onnx.graph import Array, Graph, copy_model
from tts_compress.onnx.nodes import STANDARD_DOMAINS, attribute, nested_graphs, nested_nodes
from tts_compress.onnx.weight_codes import packed_weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A Conv or ConvTranspose with a constant FP32 weight and bias that states its padding."""

    weight: Array
    """Shape (C_out, C_in, K); for a ConvTranspose (C_in, C_out, K)."""

    bias: Array
    """Shape (C_out,), zeros where there is none."""

    pads: tuple[int, int] = (0, 0)
    dilation: int = 1
    stride: int = 1
    groups: int = 1

    @property
    def keeps_length(self) -> bool:
        """True if the output of a Conv is as long as its input."""
        return self.stride == 1 and sum(self.pads) == self.dilation * (self.weight.shape[2] - 1)


def read_convolution(graph: Graph, node: onnx.NodeProto) -> Convolution | None:
    """Return the convolution along time that a node is, or None for any other node."""
    if node.op_type not in {"Conv", "ConvTranspose"}:
        return None
    weight, groups = graph.constant(node.input[1]), attribute(node, "group", 1)
    if weight is None or weight.ndim != 3 or weight.dtype != np.float32:
        return None
    bias: Array | None = np.zeros(weight.shape[0 if node.op_type == "Conv" else 1], np.float32)
    if len(node.input) > 2 and node.input[2]:
        bias = graph.constant(node.input[2])
    if bias is None or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    return Convolution(
        weight=weight,
        bias=bias,
        pads=attribute(node, "pads", (0, 0)),
        dilation=attribute(node, "dilations", (1,))[0],
        stride=attribute(node, "strides", (1,))[0],
        groups=groups,
    )


class Facts(NamedTuple):
    """Facts of an operator that has a weight."""

    axis: int | None = None
    """Axis of output channels (of rows, for a table) in the weight; None where no technique
    converts the operator. A `Gemm` may have it turned."""

    weight: int = 1
    """Position of the weight among the inputs."""

    zero: int | None = None
    """Position of the zero point of an integer operator's activations."""

    stands_for: tuple[str, str] | None = None
    """Operator and arithmetic of the decision that an integer operator carries out."""


INTEGER_LSTM = "DynamicQuantizeLSTM"
RECURRENT = ("LSTM", "GRU", "RNN")
"""Operators with a second weight behind the first, which multiplies their state."""

OPERATORS: Mapping[str, Facts] = {
    "Conv": Facts(0),
    "ConvTranspose": Facts(1),
    "MatMul": Facts(1),
    "Gather": Facts(0, weight=0),
    "Slice": Facts(-2, weight=0),  # of positions: what stands behind is a row
    "Gemm": Facts(1),
    **dict.fromkeys(RECURRENT, Facts(1)),
    **dict.fromkeys(("FusedConv", "FusedGemm", "FusedMatMul", "MatMulNBits"), Facts()),
    "ConvInteger": Facts(zero=2, stands_for=("Conv", "dynamic")),
    "MatMulInteger": Facts(zero=2, stands_for=("MatMul", "dynamic")),
    "DynamicQuantizeMatMul": Facts(),
    INTEGER_LSTM: Facts(stands_for=("LSTM", "dynamic")),
    "QLinearConv": Facts(weight=3, zero=2, stands_for=("Conv", "static")),
    "QLinearMatMul": Facts(weight=3, zero=2),
    # A convolution whose result is read as real numbers is a product of its frames.
    "MatMulIntegerToFloat": Facts(zero=4, stands_for=("Conv", "static")),
}
"""Operators that have weights."""

CONVERTIBLE = tuple(name for name, facts in OPERATORS.items() if facts.axis is not None)
LAYERS = frozenset(OPERATORS) - {"Gather", "Slice"}
"""Operators that multiply their weight; tables are only looked up or cut."""

PASSING = frozenset(
    {
        *("Clip", "Expand", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split", "Squeeze"),
        *("Tile", "Transpose", "Unsqueeze"),
    }
)
"""Operators that pass values of their first input on, under the same codes."""

INTEGER_LAYERS = frozenset(
    {name for name, facts in OPERATORS.items() if facts.zero or facts.stands_for}
    | {"DynamicQuantizeMatMul"}
)
"""Layers that multiply integers."""

SMALLEST_TABLE = 4_096
"""Elements; below that a table that is looked up or cut is not worth an operator."""

NO_TECHNIQUE = "no technique converts this operator"

_WIDENING = {"DequantizeLinear", "Cast"}
_FORMING = {"Transpose", "Reshape", "Pad", "Cast", "Add", "Unsqueeze"}
"""Operators that bring an expanded weight into the form of its kernel."""

_PARAMETER = re.compile(
    r"^(?P<module>\w+(\.\w+)*)\.(weight|bias|weight_[gv]|gamma|beta|kernel|w|b)$"
)


_SCOPES = "pkg.torch.onnx.name_scopes"
_LAST_SCOPE = re.compile(r"'(?P<module>\w+(\.\w+)*)', '[^']*'\]$")
"""The module in a list of scopes, whose last one is the operator."""


_PLAIN = str.maketrans("/.", "__")


def module_of(node: onnx.NodeProto, initializers: Collection[str]) -> str:
    """Return the dotted module name of an operator, or an empty string where it is unknown.

    torch names operators by scope (`/dec/resblocks.0/convs.1/Conv`). Older exporters number them,
    but parameters that were not folded keep their names (`dec.resblocks.0.convs.1.bias`). The
    newest one numbers them, too, and tells their scopes in their metadata.
    """
    scope = node.name.strip("/").split("/")
    if len(scope) > 1:
        return ".".join(scope[:-1])
    for name in node.input:
        if name in initializers and (parameter := _PARAMETER.match(name)):
            return parameter["module"]
    for entry in node.metadata_props:
        if entry.key == _SCOPES and (scopes := _LAST_SCOPE.search(entry.value)):
            return scopes["module"]
    return ""


def name_by_modules(graph: onnx.GraphProto) -> None:
    """Put modules that only parameters name into the names of their operators.

    A profile, and what an operator is converted to, have no more than its name. A layer whose
    module nothing names, as in graphs of Paddle, is a module of its own, named after its output.
    """
    initializers = initializer_names(graph)
    for node in graph.node:
        module = module_of(node, initializers)
        if not module and node.op_type in LAYERS:
            module = f"layers.{node.output[0].translate(_PLAIN)}"
        if module and "/" not in node.name.strip("/"):
            node.name = f"/{module}/{node.name.strip('/') or node.op_type}"


def is_small_cut(node: onnx.NodeProto, table: onnx.TensorProto) -> bool:
    """Return True for a slice of a constant too small to be a table, such as positions."""
    return node.op_type == "Slice" and math.prod(table.dims) < SMALLEST_TABLE


def initializer_names(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the names of a graph's constant tensors."""
    return frozenset(tensor.name for tensor in graph.initializer)


class WeightFinder:
    """Looks up the stored weight of an operator, also behind the operator that widens it.

    Operators in branches and loop bodies may be looked up, too.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._tensors: dict[str, onnx.TensorProto] = {}
        self._producers: dict[str, onnx.NodeProto] = {}
        for part, _ in reversed(list(nested_graphs(graph))):  # the graph's own names count most
            self._tensors |= {tensor.name: tensor for tensor in part.initializer}
            self._producers |= {name: node for node in part.node for name in node.output}

    def find(self, node: onnx.NodeProto) -> onnx.TensorProto | None:
        """Return the constant tensor of two or more dimensions, or None where there is none."""
        facts = OPERATORS.get(node.op_type)
        tensor = None if facts is None else self._stored(node.input[facts.weight])
        return None if tensor is None or is_small_cut(node, tensor) else tensor

    def find_all(self, node: onnx.NodeProto) -> list[onnx.TensorProto]:
        """Return all such tensors of an operator: a recurrent one has two."""
        facts = OPERATORS.get(node.op_type)
        if facts is None:
            return []
        last = facts.weight + 1 + (node.op_type in (*RECURRENT, INTEGER_LSTM))
        return self._all_stored(node, node.input[facts.weight : last])

    def find_others(self, node: onnx.NodeProto) -> list[onnx.TensorProto]:
        """Return such tensors of an operator at places where no technique converts any."""
        if node.op_type in _PRODUCTS:
            return self._all_stored(node, node.input[:1])
        is_other = node.op_type == "Einsum" or node.domain not in STANDARD_DOMAINS
        return self._all_stored(
            node, node.input if is_other and node.op_type not in OPERATORS else ()
        )

    def _all_stored(self, node: onnx.NodeProto, names: Iterable[str]) -> list[onnx.TensorProto]:
        stored = map(self._stored, names)
        return [tensor for tensor in stored if tensor and not is_small_cut(node, tensor)]

    def is_widened(self, node: onnx.NodeProto) -> bool:
        """Return True if the weight is stored in fewer bits than the operator reads."""
        source = self._producers.get(node.input[OPERATORS[node.op_type].weight])
        return source is not None and source.op_type in _WIDENING

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        """Return the operator that makes a tensor."""
        return self._producers.get(tensor)

    def _stored(self, name: str) -> onnx.TensorProto | None:
        source = self._producers.get(name)
        # The sum of two parts of a weight, and codes times scales.
        while source is not None and source.op_type in {"Add", "Mul"}:
            source = self._producers.get(source.input[0])
        if source is not None and source.op_type in _WIDENING:
            name = source.input[0]
        source = self._producers.get(name)
        turned = source.input[0] if source is not None and source.op_type == "Transpose" else name
        name = turned if turned in self._tensors else name  # stored once for another layer, too
        tensor = self._tensors.get(name) or self._packed(name)
        return tensor if tensor is not None and len(tensor.dims) >= 2 else None

    def _packed(self, name: str) -> onnx.TensorProto | None:
        """Return the four-bit weight that a tensor is expanded from and brought into form."""
        source = self._producers.get(name)
        while source is not None and source.op_type in _FORMING:
            source = self._producers.get(source.input[0])
        return None if source is None else packed_weight(source, self._tensors)


_PRODUCTS = frozenset({"MatMul", "Gemm", "FusedMatMul", "FusedGemm"})
_REAL: Mapping[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.DOUBLE: "float64",
}


def undecided_layers(graph: onnx.GraphProto) -> tuple[LayerRecord, ...]:
    """Return records of the layers whose real weights stay as they are, whatever a recipe says."""
    finder, names = WeightFinder(graph), initializer_names(graph)
    outer = {id(node) for node in graph.node}
    records = []
    for node in nested_nodes(graph.node):
        decided = {onnx.TensorProto.FLOAT} if id(node) in outer else set()
        kept = [t for t in finder.find_all(node) if t.data_type not in decided]
        kept = [t for t in (*kept, *finder.find_others(node)) if t.data_type in _REAL]
        if not kept:
            continue
        kind = _REAL[kept[0].data_type]
        reason = "its weight is the first operand" if node.op_type in _PRODUCTS else NO_TECHNIQUE
        if kind == "float64":
            reason = "its weight is in FP64"
        record = LayerRecord(
            module=module_of(node, names),
            operator=node.op_type,
            weights=kind,
            activations="none",
            parameters=sum(math.prod(tensor.dims) for tensor in kept),
            reason=reason if decided else "it is in a branch or a loop",
        )
        records.append(record)
    return tuple(records)


_VARIATION = 2.0**-13
"""Relative change of weights that nobody hears: a quarter of what rounding to FP16 changes."""


def vary_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with slightly other weights: another rendering by a voice without noise.

    Such a voice need not be stable. Kokoro's phases come from an arc tangent, and half of them move
    by more than a radian where its pitch moves by a ten-thousandth: weights that change by 2^-14
    change its sound nearly as much as weights that change by 2^-10, to 22 to 28 dB below it.
    Constants that are no layer's weight, such as the numbers of harmonics, are the same.
    """
    varied, random = copy_model(model), np.random.default_rng(0)
    weights = WeightFinder(varied.graph)
    layers = (node for node in nested_nodes(varied.graph.node) if node.op_type != "Gather")
    stored = {tensor.name: tensor for node in layers for tensor in weights.find_all(node)}
    for tensor in stored.values():
        if tensor.data_type == onnx.TensorProto.FLOAT:
            weight = numpy_helper.to_array(tensor)
            factor = 1.0 + _VARIATION * random.uniform(-1.0, 1.0, weight.shape)
            changed = (weight * factor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    return varied
