"""Integer layers as one operator of torch, `tts_compress::integer_layer`.

`torch.compile` and `torch.export` cannot look into packed weights. What they record instead is this
operator with the codes as a constant; it packs them when it first runs, unless a layer has.
"""

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from tts_compress.errors import ModelError
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import build_layer
from tts_compress.torch.layers.geometry import Geometry, apply_operator

if TYPE_CHECKING:
    from tts_compress.torch.layers.integer import IntegerLayer

_NAME = "tts_compress::integer_layer"
torch.library.define(
    _NAME,
    "(Tensor[] inputs, Tensor codes, Tensor scales, Tensor? bias, float? input_scale, "
    "int input_zero_point, str geometry) -> Tensor[]",
)


class Constants:
    """The tensors of a layer that graphs record; there are none until one does."""

    codes: Tensor | None = None
    scales: Tensor | None = None
    bias: Tensor | None = None

    def fill(self, layer: "IntegerLayer") -> None:
        """Take the tensors of a layer, outside of what is being recorded."""
        if self.codes is not None:
            return
        with _disable_current_modes():
            state = layer.state()
            self.codes, self.scales = state["weight"], state["weight_scale"]
            self.bias = state.get("bias")
            vars(self.codes)["layer"] = layer  # the operator need not pack it again

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how copies begin: with nothing."""
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


def record(layer: "IntegerLayer", inputs: list[Tensor]) -> list[Tensor]:
    """Return the results of a layer by the operator, so that a graph records it."""
    layer.unfold()
    constants = layer.constants
    results: list[Tensor] = torch.ops.tts_compress.integer_layer(
        inputs,
        constants.codes,
        constants.scales,
        constants.bias,
        layer.input_scale,
        layer.input_zero_point,
        layer.description,
    )
    return results


def describe_geometry(geometry: Geometry) -> str:
    """Return a geometry as text, without the type of a table's rows."""
    items = {item.name: getattr(geometry, item.name) for item in fields(geometry)}
    return json.dumps({name: value for name, value in items.items() if name != "dtype"})


@torch.library.impl(_NAME, "CPU")
def _run(inputs: list[Tensor], codes: Tensor, *rest: Any) -> list[Tensor]:
    layer = vars(codes).get("layer")
    if layer is None:
        layer = vars(codes)["layer"] = _build(codes, *rest)
    # In the order that `_shapes` tells, whatever a kernel's is.
    return [result.contiguous() for result in layer.results(inputs)]


def _build(codes: Tensor, scales: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    input_scale, input_zero_point, text = rest
    state = {"weight": codes, "weight_scale": scales}
    if bias is not None:
        state["bias"] = bias
    activations = Activations.DYNAMIC
    if input_scale is not None:
        activations = Activations.STATIC
        state["input_scale"] = torch.tensor(input_scale, dtype=torch.float64)
        state["input_zero_point"] = torch.tensor(input_zero_point)
    return build_layer(_geometry(text), Weights.INT8, activations, state)


def _geometry(text: str) -> Geometry:
    items = json.loads(text)
    lists = {key: tuple(value) for key, value in items.items() if isinstance(value, list)}
    return Geometry(**items | lists)


@torch.library.register_fake(_NAME)
def _shapes(inputs: list[Tensor], *rest: Any) -> list[Tensor]:
    geometry, (values, *states) = _geometry(rest[-1]), inputs
    if states:
        told = geometry.attributes
        width = told["hidden_size"] * (1 + told["bidirectional"])
        outputs = values.new_empty(*values.shape[:-1], width)
        return [outputs, *(torch.empty_like(state) for state in states)]
    like = apply_operator(geometry, values, values.new_empty(geometry.shape), None)
    return [values.new_empty(like.shape)]
