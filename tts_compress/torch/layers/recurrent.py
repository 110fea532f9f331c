"""Recurrent layers: LSTM and GRU of any depth, in both directions, with projections.

The kernels are torch's, which take all steps in one call. Those in integers need 0.2 of the time of
FP32 (512 units, two layers, 200 steps, one thread, AVX512-VNNI).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import override

from tts_compress.numerics.weights import round_weight
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import CompressedLayer, FloatLayer, Packed, register_layer
from tts_compress.torch.layers.geometry import RECURRENT, Geometry
from tts_compress.torch.layers.integer import (
    INTEGERS,
    IntegerLayer,
    is_recorded,
    pack_linear,
    record,
    unpack_linear,
)

_BUFFERS = {"weight": "codes", "weight_scale": "scales", "bias": "biases"}
"""`bias` is one of torch's own attributes: whether there are biases."""


def _split(geometry: Geometry, weight: Tensor) -> list[Tensor]:
    """Return the matrices that lie one behind the other."""
    shapes = geometry.matrices
    flat = torch.split(weight, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(flat, shapes, strict=True)]


@register_layer(*RECURRENT, weights=Weights.INT8)
class Int8Recurrent(CompressedLayer):
    """A recurrent layer whose weights are made FP32 in each call: small, not faster.

    Args:
        geometry: The shape of the layer it replaces.
        state: `weight` (int8, all matrices in one row), `weight_scale` (FP32, one for each of their
            rows) and `bias` (FP32, all biases in one row) where there are any.
    """

    kept: ClassVar[Mapping[str, str]] = _BUFFERS
    biased: ClassVar[bool] = False
    """True if the kernel takes no layer without biases."""

    @classmethod
    @override
    def quantize(cls, layer: FloatLayer) -> dict[str, Tensor]:
        multiplied = cls.activations != Activations.NONE
        parts = _split(layer.geometry, layer.weight)
        pairs = [round_weight(part, 0, multiplied=multiplied) for part in parts]
        codes, scales = zip(*pairs, strict=True)
        return {
            "weight": torch.cat([c.flatten() for c in codes]),
            "weight_scale": torch.cat(scales),
        }

    def flatten_parameters(self) -> None:
        """Do nothing; torch's layers lay out their weights anew for GPUs."""

    def forward(self, input: Any, hx: Any = None) -> Any:  # noqa: A002  torch's layers call it so
        """Return outputs and state for a tensor or a packed sequence, as torch's layer does."""
        told, is_packed = self.geometry.attributes, isinstance(input, PackedSequence)
        values, sizes, order, back = input if is_packed else (input, None, None, None)
        axis = 0 if told["batch_first"] else 1
        is_single = not is_packed and values.dim() == 2
        values = values.unsqueeze(axis) if is_single else values
        if hx is None:
            count = values.shape[axis] if sizes is None else int(sizes[0])
            depth, hidden = told["num_layers"] * (1 + told["bidirectional"]), told["hidden_size"]
            widths = [told["proj_size"] or hidden, hidden][: 1 + self._has_cells]
            states = [values.new_zeros(depth, count, width) for width in widths]
        else:
            states = list(hx) if self._has_cells else [hx]
            states = [state.unsqueeze(1) if is_single else state for state in states]
            states = [s if order is None else s.index_select(1, order) for s in states]
        outputs: Any
        outputs, *states = self.steps([values, *states], sizes)
        if is_packed:
            outputs = PackedSequence(outputs, sizes, order, back)
            states = [s if back is None else s.index_select(1, back) for s in states]
        elif is_single:
            outputs, states = outputs.squeeze(axis), [state.squeeze(1) for state in states]
        return outputs, tuple(states) if self._has_cells else states[0]

    def steps(self, inputs: list[Tensor], sizes: Tensor | None) -> list[Tensor]:
        """Return outputs and states, in the type of the inputs.

        Args:
            inputs: Values and states.
            sizes: Sequences at each step of a packed sequence; None for a tensor.
        """
        told, (values, *states) = self.geometry.attributes, (each.float() for each in inputs)
        kernel, weights = self._kernel()
        begin: Any = states if self._has_cells else states[0]
        settings = [self.biased or told["bias"], told["num_layers"], float(told["dropout"])]
        settings += [self.training, told["bidirectional"]]
        if sizes is None:
            results = kernel(values, begin, weights, *settings, told["batch_first"])
        else:
            results = kernel(values, sizes, begin, weights, *settings)
        return [result.to(inputs[0].dtype) for result in results]

    @property
    def _has_cells(self) -> bool:
        return self.geometry.operator == "LSTM"

    def _kernel(self) -> tuple[Callable[..., Any], list[Any]]:
        """Return one of torch's functions, and the weights that it takes."""
        weights: list[Tensor] = []
        for matrices, scales, biases in _cells(self.geometry, self.state()):
            pairs = zip(matrices, scales, strict=True)
            real = [codes.float() * scale.unsqueeze(1) for codes, scale in pairs]
            weights += [*real[:2], *biases, *real[2:]]
        return getattr(torch, self.geometry.operator.lower()), weights


@register_layer(*RECURRENT, weights=Weights.INT8, activations=INTEGERS[:1], device="cpu")
class IntegerRecurrent(Int8Recurrent, IntegerLayer):
    """A recurrent layer that multiplies integers, with ranges found at every step."""

    kept: ClassVar[Mapping[str, str]] = {}
    biased: ClassVar[bool] = True

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, state)
        self._packed: list[list[Packed]] = []
        self._biases: list[list[Tensor]] = []
        for matrices, scales, biases in _cells(geometry, state):
            needed = biases or [torch.zeros(len(matrices[0]))] * 2
            parts = zip(matrices, scales, needed, strict=True)
            self._packed.append([Packed(pack_linear, unpack_linear, *part) for part in parts])
            self._biases.append(needed)

    @classmethod
    @override
    def objection(cls, geometry: Geometry, group_size: int) -> str:
        return "no integer kernel projects states" if geometry.attributes["proj_size"] else ""

    @override
    def steps(self, inputs: list[Tensor], sizes: Tensor | None) -> list[Tensor]:
        if sizes is None and is_recorded():
            return record(self, inputs)
        return super().steps(inputs, sizes)

    @override
    def results(self, inputs: list[Tensor]) -> list[Tensor]:
        return super().steps(inputs, None)

    def _kernel(self) -> tuple[Callable[..., Any], list[Any]]:
        make = torch.ops.quantized.make_quantized_cell_params_dynamic
        pairs = zip(self._packed, self._biases, strict=True)
        cells = [make(*(part.weight for part in parts), *bias, False) for parts, bias in pairs]
        if not self._has_cells:
            return torch.quantized_gru, cells
        return partial(torch.quantized_lstm, dtype=torch.qint8, use_dynamic=True), cells

    @override
    def unpack(self) -> Tensor:
        return torch.cat([part.codes().flatten() for parts in self._packed for part in parts])


def _cells(
    geometry: Geometry, state: Mapping[str, Tensor]
) -> Iterator[tuple[list[Tensor], list[Tensor], list[Tensor]]]:
    """Yield matrices, scales of their rows and biases of each layer in each direction."""
    matrices, each = _split(geometry, state["weight"]), 3 if geometry.attributes["proj_size"] else 2
    scales = torch.split(state["weight_scale"], [len(matrix) for matrix in matrices])
    biases = state["bias"].view(len(matrices) // each, 2, -1) if "bias" in state else None
    for number in range(len(matrices) // each):
        part = slice(number * each, (number + 1) * each)
        yield matrices[part], list(scales[part]), [] if biases is None else list(biases[number])
