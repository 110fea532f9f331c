"""Operators that exporters and optimizers write in forms of their own, as the plain ones they are.

Everything else here knows a layer by its plain form: a `Conv` along one axis, a `LeakyRelu`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from tts_compress.onnx.graph import CONTRIB, Array, Graph
from tts_compress.onnx.nodes import attribute, copy_attributes, sort_nodes
from tts_compress.onnx.rewrite.normalization import ELEMENTWISE, Shape, known_shapes
from tts_compress.onnx.tensor import Tensor

_ACTIVATIONS = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": (),
}
"""Activations that onnxruntime fuses into layers, and the names of their parameters in order."""


def split_fused(graph: Graph) -> int:
    """Write layers and curves apart that onnxruntime fused; return how many.

    Files that its optimizer saved hold layers with their activations, products with a turned
    matrix times a number, and x · sigmoid(x). The runtime fuses them again where they stay in FP32.
    """
    fused = [n for n in graph.nodes if n.domain == CONTRIB and n.op_type in _SPLIT]
    return sum(_SPLIT[node.op_type](graph, node) for node in fused)


def _split_swish(graph: Graph, node: onnx.NodeProto) -> bool:
    """Write x · sigmoid(αx)."""
    stem, alpha = f"{node.output[0]}.swish", attribute(node, "alpha", 1.702)
    x = Tensor(graph, stem, node.input[0])
    graph.remove(node)
    share = (x if alpha == 1 else x * alpha).apply("Sigmoid")
    graph.insert("Mul", [x.name, share.name], node.output[0])
    return True


def _split_layer(graph: Graph, node: onnx.NodeProto) -> bool:
    activation = attribute(node, "activation", "")
    if activation not in _ACTIVATIONS:
        return False
    stem, added = node.output[0], [t for t in node.input[3:] if t]
    stated = attribute(node, "activation_params", ()) or [
        attribute(node, f"activation_{name}", 0.0) for name in _ACTIVATIONS[activation]
    ]
    graph.remove(node)
    plain = {k: v for k, v in copy_attributes(node).items() if not k.startswith("activation")}
    operator = node.op_type.removeprefix("Fused")
    result = graph.make(operator, node.input[:3], f"{stem}.layer", node.name, **plain)
    for tensor in added:
        result = graph.make("Add", [result, tensor], f"{stem}.sum")
    parameters = dict(zip(_ACTIVATIONS[activation], stated, strict=False))
    bounds = stated if activation == "Clip" else ()  # they are inputs
    limits = [graph.add_constant(f"{stem}.limit", np.array(b, np.float32)) for b in bounds]
    graph.insert(activation, [result, *limits], stem, **parameters)
    return True


def _split_product(graph: Graph, node: onnx.NodeProto) -> bool:
    stated = copy_attributes(node)
    matrix = graph.constant(node.input[1])
    others = ("transA", "transBatchA", "transBatchB")
    if matrix is None or matrix.ndim != 2 or any(stated.get(name) for name in others):
        return False
    turned = matrix.T if stated.get("transB") else matrix
    scaled = (turned * np.float32(stated.get("alpha", 1.0))).astype(matrix.dtype)
    weight = graph.add_constant(f"{node.input[1]}.plain", scaled)
    graph.remove(node)
    graph.add("MatMul", [node.input[0], weight], [node.output[0]], node.name)
    return True


_SPLIT: Mapping[str, Callable[[Graph, onnx.NodeProto], bool]] = {
    "FusedConv": _split_layer,
    "FusedGemm": _split_layer,
    "FusedMatMul": _split_product,
    "QuickGelu": _split_swish,
}

_SCALED = ("Mul", "x", "slope")
_CURVES = (
    ("Sub", ("Relu", "x"), ("Mul", ("Relu", ("Neg", "x")), "slope")),
    ("Max", "x", _SCALED),
    *(("Where", (op, "x", "zero"), "x", _SCALED) for op in ("Greater", "GreaterOrEqual")),
    *(("Where", (op, "x", "zero"), _SCALED, "x") for op in ("Less", "LessOrEqual")),
    ("Max", "x", "zero"),
    ("Clip", "x", "zero"),
)


def unify_activations(graph: Graph) -> int:
    """Write activations as the `LeakyRelu` or `Relu` that they are; return how many were written.

    Required: results in FP32, and one slope. A `PRelu` stays: on codes, what it returns would be
    rounded once more, and Supertonic's vocoder does not bear that.
    """
    shapes = known_shapes(graph)
    return sum(_unify(graph, shapes, node) for node in list(graph.nodes))


def _unify(graph: Graph, shapes: Mapping[str, Shape], node: onnx.NodeProto) -> bool:
    if len(list(filter(None, node.input))) > 2 + (node.op_type == "Where"):
        return False
    output = node.output[0]
    matches = (parts for form in _CURVES for parts in graph.matches(output, form))
    parts = next((parts for parts in matches if _holds(graph, shapes, node, parts)), None)
    if parts is None or graph.types.get(output) != TensorProto.FLOAT:
        return False
    graph.remove(node)
    slope = graph.scalar(parts["slope"]) if "slope" in parts else None
    operator = "Relu" if slope is None else "LeakyRelu"
    graph.add(operator, [parts["x"]], [output], node.name, alpha=slope)
    return True


def _holds(
    graph: Graph, shapes: Mapping[str, Shape], node: onnx.NodeProto, parts: Mapping[str, str]
) -> bool:
    """Return True if the constants that a form names are those of an activation."""
    if "zero" in parts and graph.scalar(parts["zero"]) != 0:
        return False
    # A constant of more axes would add them to the result.
    axes = max(1, len(shapes.get(parts["x"], ())))
    constants = map(graph.constant, parts.values())
    if any(value is not None and value.ndim > axes for value in constants):
        return False
    slope = graph.scalar(parts["slope"]) if "slope" in parts else 0.0
    # `Max` takes the upper line of two.
    return slope is not None and (node.op_type != "Max" or 0 <= slope <= 1)


def state_padding(graph: Graph) -> int:
    """Write the padding of convolutions that state its kind alone; return how many did.

    Required: constant weights, and an amount that depends on no length.
    """
    return sum(_state_padding(graph, node) for node in list(graph.nodes))


def _state_padding(graph: Graph, node: onnx.NodeProto) -> bool:
    kind, stated = attribute(node, "auto_pad", "NOTSET"), copy_attributes(node)
    weight = graph.constant(node.input[1]) if node.op_type in {"Conv", "ConvTranspose"} else None
    if kind == "NOTSET" or weight is None or stated.get("output_shape"):
        return False
    axes = weight.ndim - 2
    strides, dilations, more = (
        np.array(stated.get(name, [default] * axes))
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    total = dilations * (np.array(weight.shape[2:]) - 1)
    if node.op_type == "ConvTranspose":
        total += 1 + more - strides  # the result is as many times as long
    elif kind != "VALID" and (strides != 1).any():
        return False
    total = total * (kind != "VALID")
    if (total < 0).any():
        return False
    less, rest = total // 2, total - total // 2
    pads = [*less, *rest] if kind == "SAME_UPPER" else [*rest, *less]
    graph.remove(node)
    stated |= {"auto_pad": "NOTSET", "pads": [int(pad) for pad in pads]}
    graph.add(node.op_type, list(node.input), list(node.output), node.name, **stated)
    return True


_ROW_AXES = (2, 3)


def flatten_convolutions(graph: Graph) -> int:
    """Write convolutions of images of one row, or one column, as those along time that they are.

    Exporters of frameworks that convolve images alone put an axis of size one around each layer,
    or around all of them. Between layers what works element by element, or on channels, is
    computed without that axis, too.

    Returns:
        The number of convolutions. Required: constant weights, and a size of one that is known.
    """
    shapes = known_shapes(graph)
    if not any(_row_axis(graph, shapes, node, None) for node in graph.nodes):
        return 0
    flatter = _Flatter(graph, shapes)
    return sum(flatter.flatten(node) for node in sort_nodes(graph.nodes))


class _Flatter:
    """Follows tensors (B, C, 1, T) or (B, C, T, 1) forward, and their forms without that axis."""

    def __init__(self, graph: Graph, shapes: Mapping[str, Shape]) -> None:
        self.graph = graph
        self.shapes = shapes
        self.flat: dict[str, tuple[str, int]] = {}
        """The form (B, C, T) of a tensor, and the axis that it lacks."""

    def flatten(self, node: onnx.NodeProto) -> bool:
        """Compute a node's results without the axis if its inputs lack it; True for layers."""
        graph, source = self.graph, node.input[0] if node.input else ""
        flat, axis = self.flat.get(source, (None, None))
        if node.op_type == "Unsqueeze":
            axes = _axes(graph, node)
            is_image = len(axes) == 1 and len(self.shapes.get(node.output[0], ())) == 4
            if is_image and axes[0] % 4 in _ROW_AXES:
                self.flat[node.output[0]] = source, axes[0] % 4
        elif node.op_type == "Squeeze" and flat is not None:
            if [a % 4 for a in _axes(graph, node)] == [axis]:
                graph.remove(node)
                graph.add("Identity", [flat], list(node.output), node.name)
                if node.output[0] not in graph.outputs:
                    graph.redirect(node.output[0], flat)
        elif (axis := _row_axis(graph, self.shapes, node, axis)) is not None:
            self._flatten_layer(node, axis)
            return True
        elif _is_passed(graph, node):
            self._pass(node)
        return False

    def _flatten_layer(self, node: onnx.NodeProto, axis: int) -> None:
        graph, kept = self.graph, 3 - (axis - 2)  # the axis of time
        flat, lacking = self.flat.get(node.input[0], ("", None))
        if lacking != axis:
            axes = graph.add_bounds(f"{node.output[0]}.axis", axis)
            flat = graph.make("Squeeze", [node.input[0], *axes], f"{node.input[0]}.flat")
        stated = copy_attributes(node)
        for name in ("kernel_shape", "strides", "dilations", "output_padding"):
            if name in stated:
                stated[name] = [stated[name][kept - 2]]
        if "pads" in stated:
            stated["pads"] = [stated["pads"][kept - 2], stated["pads"][kept]]
        weight = np.squeeze(graph.value(node.input[1]), axis)
        inputs = [flat, graph.share_constant(f"{node.input[1]}.flat", weight), *node.input[2:]]
        self._emit(node, inputs, axis, stated)

    def _pass(self, node: onnx.NodeProto) -> None:
        """Compute an operator on forms without the axis, if all that it reads have one."""
        graph, inputs = self.graph, list(node.input)
        lacking = {axis for t in inputs if t in self.flat for _, axis in [self.flat[t]]}
        data = 1 if node.op_type in _BY_CHANNEL else len(inputs)
        if len(lacking) != 1:
            return
        (axis,) = lacking
        for position, tensor in enumerate(inputs[:data]):
            value = graph.constant(tensor)
            if tensor in self.flat:
                inputs[position] = self.flat[tensor][0]
            elif value is None:
                return
            elif value.ndim:
                whole = value.reshape((1,) * (4 - value.ndim) + value.shape)
                if whole.ndim != 4 or whole.shape[axis] != 1:
                    return
                squeezed: Array = np.squeeze(whole, axis)
                inputs[position] = graph.add_constant(f"{tensor}.flat", squeezed)
        self._emit(node, inputs, axis, copy_attributes(node))

    def _emit(
        self, node: onnx.NodeProto, inputs: Sequence[str], axis: int, stated: Mapping[str, Any]
    ) -> None:
        """Write a node without the axis, and its results with it for whoever reads those."""
        graph = self.graph
        graph.remove(node)
        results = [graph.fresh(f"{name}.flat") for name in node.output]
        graph.add(node.op_type, inputs, results, node.name, domain=node.domain, **stated)
        for result, output in zip(results, node.output, strict=True):
            graph.insert("Unsqueeze", [result, *graph.add_bounds(f"{output}.axis", axis)], output)
            self.flat[output] = result, axis
            graph.types[result] = graph.types.get(output, TensorProto.FLOAT)


_BY_CHANNEL = frozenset({"InstanceNormalization", "Slice", "Split"})
"""Operators on channels whose first input alone has the axis."""


def _is_passed(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return True for an operator that computes the same without an axis of size one."""
    if node.op_type in {"Concat", "Split"}:
        return attribute(node, "axis", 0) == 1
    if node.op_type == "Slice":
        axes = graph.constant(node.input[3]) if len(node.input) > 3 else None
        return axes is not None and list(axes) == [1]
    passed = node.op_type in {*ELEMENTWISE, "InstanceNormalization", "LeakyRelu", "Max", "PRelu"}
    return passed and not node.op_type.endswith("quantizeLinear")


def _axes(graph: Graph, node: onnx.NodeProto) -> list[int]:
    """Return the axes that a Squeeze or Unsqueeze states; none where they are not constant."""
    value = graph.constant(node.input[1]) if len(node.input) > 1 else None
    return [] if value is None else [int(axis) for axis in value.reshape(-1)]


def _row_axis(
    graph: Graph, shapes: Mapping[str, Shape], node: onnx.NodeProto, lacking: int | None
) -> int | None:
    """Return the axis of size one that a convolution of images leaves alone; None without any."""
    if node.op_type not in {"Conv", "ConvTranspose"}:
        return None
    weight, shape = graph.constant(node.input[1]), shapes.get(node.input[0], ())
    if weight is None or weight.ndim != 4 or copy_attributes(node).get("output_shape"):
        return None
    pads, strides = attribute(node, "pads", (0,) * 4), attribute(node, "strides", (1, 1))
    for axis in _ROW_AXES:
        is_one = axis == lacking or (len(shape) == 4 and shape[axis] == 1)
        moves = weight.shape[axis] > 1 or strides[axis - 2] > 1
        if is_one and not moves and not pads[axis - 2] and not pads[axis]:
            return axis
    return None
