"""Integer layers as one operator of torch, `tts_compress::integer_layer`.

`torch.compile` and `torch.export` cannot look into packed weights. What they record instead is this
operator, with a layer's state as constants; it packs them when it first runs, unless a layer has.
Layers here are each an `IntegerLayer`, whose module imports this one.
"""

import json
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from tts_compress.errors import ModelError
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import build_layer
from tts_compress.torch.layers.geometry import Geometry, apply_operator

_NAME = "tts_compress::integer_layer"
torch.library.define(_NAME, "(Tensor[] inputs, Tensor[] state, str layer) -> Tensor[]")


class Constants:
    """The state of a layer as graphs record it; empty until one does, and in copies."""

    tensors: tuple[Tensor, ...] = ()

    def fill(self, layer: Any) -> None:
        """Take the tensors of a layer, outside of what is being recorded."""
        if not self.tensors:
            with _disable_current_modes():
                self.tensors = tuple(layer.state().values())
            vars(self.tensors[0])["layer"] = layer  # the operator need not pack it again

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


def is_recorded() -> bool:
    """Return True while torch records what a module computes.

    Raises:
        ModelError: It does for a format that has no integer layers.
    """
    is_compiling = torch.compiler.is_compiling()
    is_tracing = torch._C._get_tracing_state()  # noqa: SLF001  `torch.jit.is_tracing` in half its time
    if is_tracing or (is_compiling and torch.onnx.is_in_onnx_export()):
        raise ModelError(
            "torch.jit.trace and torch.onnx.export cannot record integer layers; for ONNX export "
            "the FP32 module and compress the graph (`tts-compress quantize onnx:FILE`), else use "
            "torch.export.export"
        )
    return is_compiling


def record(layer: Any, inputs: list[Tensor]) -> list[Tensor]:
    """Return the results of a layer by the operator, so that a graph records it."""
    layer.unfold()
    results: list[Tensor] = torch.ops.tts_compress.integer_layer(
        inputs, layer.constants.tensors, layer.description
    )
    return results


def describe_layer(geometry: Geometry, names: list[str]) -> str:
    """Return what the operator is told of a layer besides tensors: their names, and the shape."""
    items = {item.name: getattr(geometry, item.name) for item in fields(geometry)}
    del items["dtype"]  # a matter of tables
    return json.dumps([names, items])


def _read(text: str) -> tuple[list[str], Geometry]:
    names, items = json.loads(text)
    lists = {key: tuple(value) for key, value in items.items() if isinstance(value, list)}
    return names, Geometry(**items | lists)


def _run(inputs: list[Tensor], state: list[Tensor], text: str) -> list[Tensor]:
    layer = vars(state[0]).get("layer")
    if layer is None:
        layer = vars(state[0])["layer"] = _build(state, text)
    # In the order that `_shapes` tells, whatever a kernel's is.
    return [result.contiguous() for result in layer.results(inputs)]


def _build(state: list[Tensor], text: str) -> Any:
    names, geometry = _read(text)
    activations = Activations.STATIC if "input_scale" in names else Activations.DYNAMIC
    return build_layer(geometry, Weights.INT8, activations, dict(zip(names, state, strict=True)))


def _shapes(inputs: list[Tensor], _: list[Tensor], text: str) -> list[Tensor]:
    geometry, (values, *states) = _read(text)[1], inputs
    if states:
        told = geometry.attributes
        width = told["hidden_size"] * (1 + told["bidirectional"])
        outputs = values.new_empty(*values.shape[:-1], width)
        return [outputs, *(torch.empty_like(each) for each in states)]
    like = apply_operator(geometry, values, values.new_empty(geometry.shape), None)
    return [values.new_empty(like.shape)]


torch.library.impl(_NAME, "CPU", _run)
torch.library.register_fake(_NAME, _shapes)
