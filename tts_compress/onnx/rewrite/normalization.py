"""Normalization over time that takes over the factor and offset behind it.

Adaptive instance normalization (Huang and Belongie, "Arbitrary Style Transfer in Real-time with
Adaptive Instance Normalization", 2017), as StyleTTS 2 and Kokoro have it, multiplies each channel
by a factor of the style and adds an offset. `InstanceNormalization` does that in the same pass.
"""

from collections.abc import Mapping

import numpy as np
import onnx

from tts_compress.onnx.graph import Graph, copy_attributes

_Shape = tuple[int | None, ...]


def fold_affine(graph: Graph) -> int:
    """Fold γ · x + β into the normalizations that make x; return how many were folded.

    Required: one text at a time; γ and β known to hold one number per channel, constant or made at
    run time; a normalization that nothing else reads. β may be missing.
    """
    shapes = _shapes(graph)
    return sum(
        _fold(graph, shapes, node)
        for node in list(graph.nodes)
        if node.op_type == "InstanceNormalization"
    )


def _fold(graph: Graph, shapes: Mapping[str, _Shape], node: onnx.NodeProto) -> bool:
    source, scale, shift = node.input
    constants = [graph.constant(tensor) for tensor in (scale, shift)]
    channels = None if any(value is None for value in constants) else len(graph.value(scale))
    product = graph.only_reader(node.output[0])
    factor = _operand(shapes, product, "Mul", node.output[0], channels)
    if product is None or factor is None:
        return False
    last = graph.only_reader(product.output[0])
    offset = _operand(shapes, last, "Add", product.output[0], channels)
    if last is None or offset is None:
        last, offset = product, None
    if last.output[0] in graph.outputs:
        return False
    flat = graph.share_constant("tts_compress.flat", np.array([-1], np.int64))
    rows = graph.make("Reshape", [factor, flat], f"{factor}.channels")
    if (graph.value(scale) == 1).all():
        scale = rows
    else:
        scale = graph.make("Mul", [scale, rows], f"{node.output[0]}.scale")
    if graph.value(shift).any():
        shift = graph.make("Mul", [shift, rows], f"{node.output[0]}.shift")
        if offset is not None:
            more = graph.make("Reshape", [offset, flat], f"{offset}.channels")
            shift = graph.make("Add", [shift, more], f"{node.output[0]}.offset")
    elif offset is not None:
        shift = graph.make("Reshape", [offset, flat], f"{offset}.channels")
    for replaced in {id(n): n for n in (node, product, last)}.values():
        graph.remove(replaced)
    inputs, attributes = [source, scale, shift], copy_attributes(node)
    graph.add("InstanceNormalization", inputs, [last.output[0]], node.name, **attributes)
    return True


def _operand(
    shapes: Mapping[str, _Shape],
    node: onnx.NodeProto | None,
    operator: str,
    tensor: str,
    channels: int | None,
) -> str | None:
    """Return the other operand of a sum or product, if it is one number per channel."""
    if node is None or node.op_type != operator or channels is None:
        return None
    others = [name for name in node.input if name != tensor]
    shape = shapes.get(others[0], ()) if len(others) == 1 else ()
    # A batch of unknown size is one text.
    fits = shape[-2:] == (channels, 1) and shape[:-2] in {(), (1,), (None,)}
    return others[0] if fits else None


def _shapes(graph: Graph) -> dict[str, _Shape]:
    """Return the known shapes of tensors; None stands for an unknown size."""
    model = graph.model.graph
    shapes: dict[str, _Shape] = {name: tuple(t.dims) for name, t in graph.initializers.items()}
    for value in (*model.value_info, *model.input):
        if value.type.tensor_type.HasField("shape"):
            sizes = value.type.tensor_type.shape.dim
            shapes[value.name] = tuple(
                size.dim_value if size.HasField("dim_value") else None for size in sizes
            )
    return shapes
