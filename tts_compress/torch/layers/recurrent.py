"""Recurrent layers: LSTM and GRU of any depth, in both directions, with projections.

The kernels are torch's, which take all steps in one call. Those in integers need 0.2 of the time of
FP32 (512 units, two layers, 200 steps, one thread, AVX512-VNNI).
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from tts_compress.numerics.weights import round_weight
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import CompressedLayer, FloatLayer, register_layer
from tts_compress.torch.layers.float16 import Float16Layer
from tts_compress.torch.layers.geometry import RECURRENT, Geometry
from tts_compress.torch.layers.integer import (
    INTEGERS,
    IntegerLayer,
    Packed,
    pack_linear,
    unpack_linear,
)
from tts_compress.torch.layers.operator import is_recorded, record

_BUFFERS = {"weight": "codes", "weight_scale": "scales", "bias": "biases"}
"""`bias` is one of torch's own attributes: whether there are biases."""


class _Cell(NamedTuple):
    """Weights of one layer in one direction, as torch orders them."""

    matrices: list[Tensor]
    """Input to gates, state to gates and, where there is one, the projection of the state."""

    scales: list[Tensor]
    """Of the matrices' rows."""

    biases: list[Tensor]
    """Of the first two; empty where there are none."""


def _cells(geometry: Geometry, state: Mapping[str, Tensor]) -> Iterator[_Cell]:
    """Yield the cells whose tensors lie one behind the other in a layer's state."""
    shapes, each = geometry.matrices, 3 if geometry.attributes["proj_size"] else 2
    flat = state["weight"].split([math.prod(shape) for shape in shapes])
    matrices = [part.view(shape) for part, shape in zip(flat, shapes, strict=True)]
    rows = [shape[0] for shape in shapes]
    scales = state["weight_scale"].split(rows) if "weight_scale" in state else [None] * len(rows)
    cells = len(shapes) // each
    biases = state["bias"].view(cells, 2, -1) if "bias" in state else [()] * cells
    for number, bias in enumerate(biases):
        part = slice(number * each, (number + 1) * each)
        yield _Cell(matrices[part], list(scales[part]), list(bias))


class Recurrent(CompressedLayer):
    """A recurrent layer that calls one of torch's kernels."""

    dtype: ClassVar[torch.dtype] = torch.float32
    """The type of what goes into the kernel."""

    needs_biases: ClassVar[bool] = False
    """True if the kernel takes no layer without biases."""

    def forward(self, inputs: Any, hx: Any = None) -> Any:
        """Return outputs and state for a tensor or a packed sequence, as torch's layer does."""
        packed = inputs if isinstance(inputs, PackedSequence) else (inputs, None, None, None)
        values, sizes, order, back = packed
        axis = 0 if self.batch_first else 1
        is_single = sizes is None and values.dim() == 2
        values = values.unsqueeze(axis) if is_single else values
        if hx is None:
            count = values.shape[axis] if sizes is None else int(sizes[0])
            states = [values.new_zeros(shape) for shape in self._state_shapes(count)]
        else:
            states = [hx] if self.mode == "GRU" else list(hx)
            states = [state.unsqueeze(1) if is_single else state for state in states]
            states = [s if order is None else s.index_select(1, order) for s in states]
        outputs, states = self._run(values, sizes, states)
        if sizes is not None:
            outputs = PackedSequence(outputs, sizes, order, back)
            states = [s if back is None else s.index_select(1, back) for s in states]
        elif is_single:
            outputs, states = outputs.squeeze(axis), [state.squeeze(1) for state in states]
        return outputs, states[0] if self.mode == "GRU" else tuple(states)

    def _run(
        self, values: Tensor, sizes: Tensor | None, states: list[Tensor]
    ) -> tuple[Any, list[Tensor]]:
        """Return outputs and states in the type of the inputs; `sizes` are a packed sequence's."""
        begin = [state.to(self.dtype) for state in states]
        kernel, weights = self._kernel()
        arguments = [values.to(self.dtype), begin[0] if self.mode == "GRU" else begin, weights]
        biased = self.bias or self.needs_biases
        settings = [biased, self.num_layers, float(self.dropout), self.training, self.bidirectional]
        if sizes is None:
            settings.append(self.batch_first)
        else:
            arguments.insert(1, sizes)
        outputs, *ends = (result.to(values.dtype) for result in kernel(*arguments, *settings))
        return outputs, ends

    @abstractmethod
    def _kernel(self) -> tuple[Callable[..., Any], list[Any]]:
        """Return one of torch's functions, and the weights that it takes."""

    def _state_shapes(self, count: int) -> list[tuple[int, int, int]]:
        """Return the shapes of the states for a number of sequences."""
        depth = self.num_layers * (1 + self.bidirectional)
        shapes = [(depth, count, self.proj_size or self.hidden_size)]
        return shapes if self.mode == "GRU" else [*shapes, (depth, count, self.hidden_size)]


@register_layer(*RECURRENT, weights=Weights.INT8)
class Int8Recurrent(Recurrent):
    """A recurrent layer whose weights are made FP32 in each call: small, not faster.

    Args:
        geometry: The shape of the layer it replaces.
        state: `weight` (int8, all matrices in one row), `weight_scale` (FP32, one for each of their
            rows) and `bias` (FP32, all biases in one row) where there are any.
    """

    kept: ClassVar[Mapping[str, str]] = _BUFFERS

    @classmethod
    def quantize(cls, layer: FloatLayer) -> dict[str, Tensor]:
        """Return the codes of all matrices in one row, and the scales of their rows."""
        multiplied = cls.activations != Activations.NONE
        parts = [
            part for cell in _cells(layer.geometry, {"weight": layer.weight}) for part in cell[0]
        ]
        pairs = [round_weight(part, 0, multiplied=multiplied) for part in parts]
        return {
            "weight": torch.cat([codes.flatten() for codes, _ in pairs]),
            "weight_scale": torch.cat([scales for _, scales in pairs]),
        }

    def _kernel(self) -> tuple[Callable[..., Any], list[Any]]:
        weights: list[Tensor] = []
        for matrices, scales, biases in _cells(self.geometry, self.state()):
            pairs = zip(matrices, scales, strict=True)
            real = [codes.float() * scale.unsqueeze(1) for codes, scale in pairs]
            weights += [*real[:2], *biases, *real[2:]]
        return getattr(torch, self.mode.lower()), weights


@register_layer(*RECURRENT, weights=Weights.INT8, activations=INTEGERS[:1], device="cpu")
class IntegerRecurrent(Int8Recurrent, IntegerLayer):
    """A recurrent layer that multiplies integers, with ranges found at every step."""

    kept: ClassVar[Mapping[str, str]] = {}
    needs_biases: ClassVar[bool] = True

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, state)
        self._packed: list[tuple[Packed, Packed]] = []
        self._biases: list[list[Tensor]] = []
        for matrices, scales, biases in _cells(geometry, state):
            needed = biases or [torch.zeros(len(matrices[0]))] * 2
            parts = zip(matrices, scales, needed, strict=True)
            first, second = (Packed(pack_linear, unpack_linear, *part) for part in parts)
            self._packed.append((first, second))
            self._biases.append(needed)

    @classmethod
    def objection(cls, geometry: Geometry, group_size: int) -> str:
        """Return an objection to projections."""
        del group_size
        return "no integer kernel projects states" if geometry.attributes["proj_size"] else ""

    def _run(
        self, values: Tensor, sizes: Tensor | None, states: list[Tensor]
    ) -> tuple[Any, list[Tensor]]:
        if sizes is None and is_recorded():
            outputs, *ends = record(self, [values, *states])
            return outputs, ends
        return super()._run(values, sizes, states)

    def results(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return outputs and states for a tensor and states."""
        outputs, ends = super()._run(inputs[0], None, inputs[1:])
        return [outputs, *ends]

    def _kernel(self) -> tuple[Callable[..., Any], list[Any]]:
        make = torch.ops.quantized.make_quantized_cell_params_dynamic
        cells = [
            make(first.weight, second.weight, *biases, False)
            for (first, second), biases in zip(self._packed, self._biases, strict=True)
        ]
        if self.mode == "GRU":
            return torch.quantized_gru, cells
        return partial(torch.quantized_lstm, dtype=torch.qint8, use_dynamic=True), cells

    def unpack(self) -> Tensor:
        """Return the codes of all matrices in one row."""
        return torch.cat([part.codes().flatten() for pair in self._packed for part in pair])


@register_layer(*RECURRENT, weights=Weights.FLOAT16, activations=(Activations.FLOAT16,))
class Float16Recurrent(Recurrent, Float16Layer):
    """A recurrent layer with weights and arithmetic of 16 bits."""

    dtype: ClassVar[torch.dtype] = torch.float16
    kept: ClassVar[Mapping[str, str]] = {"weight": "values", "bias": "biases"}

    def _kernel(self) -> tuple[Callable[..., Any], list[Any]]:
        weights: list[Tensor] = []
        for matrices, _, biases in _cells(self.geometry, self.state()):
            weights += [*matrices[:2], *biases, *matrices[2:]]
        return getattr(torch, self.mode.lower()), weights


@register_layer(*RECURRENT, weights=Weights.BFLOAT16, activations=(Activations.BFLOAT16,))
class BFloat16Recurrent(Float16Recurrent):
    """The same in bfloat16."""

    dtype: ClassVar[torch.dtype] = torch.bfloat16
