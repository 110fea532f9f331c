"""Layers that multiply integers: `int8` weights, activations rounded as they arrive.

The rounding of activations is dynamic (the range of this very input) or static (a range from
calibration). The outputs are FP32, so everything between two layers stays as it was.

The kernels are those of `torch.ops.quantized`: activations are rounded to `uint8` with one scale
for the tensor, weights to `int8` with one scale per output channel, sums are 32-bit. `fbgemm` and
`onednn` are two implementations of them on x86, `qnnpack` one on ARM. On x86 `fbgemm` comes first:
it takes 0.86 of `onednn`'s time on one row, the case of autoregressive models, and 1.08 on 512 rows
(AVX512-VNNI, one thread); and `onednn` has no ranges known before.

`torch.compile` and `torch.export` cannot look into packed weights. What they record instead is the
operator `tts_compress::integer_layer`, with a layer's state as constants; it packs them when it
first runs, unless a layer has.
"""

import json
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from typing_extensions import override

from tts_compress.errors import ModelError
from tts_compress.numerics.weights import round_weight
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import (
    CompressedLayer,
    FloatLayer,
    Packed,
    activation_codes,
    build_layer,
    cannot_record,
    register_layer,
)
from tts_compress.torch.layers.geometry import Geometry, apply_operator, pad, plain_view

_NAME = "tts_compress::integer_layer"
torch.library.define(_NAME, "(Tensor[] inputs, Tensor[] state, str layer) -> Tensor[]")

INTEGERS = (Activations.DYNAMIC, Activations.STATIC)
_ENGINES = ("fbgemm", "onednn", "qnnpack")
"""Implementations, the preferred one first."""

_MOST_ROWS = 2048
"""Frames up to which a convolution is fastest as a product of matrices.

For the convolutions of Pocket-TTS's codec it takes 0.47 of the convolution's time on 80 ms of audio
(16 to 1,920 frames a layer) and 0.70 on 320 ms (AVX512-VNNI, one thread); on more frames of few
channels, copying the windows costs more than it saves.
"""

_LEAST_CHANNELS = 8
"""Channels of a group below which integers are not faster than FP32."""


class Constants:
    """The state of a layer as graphs record it; empty until one does, and in copies."""

    tensors: tuple[Tensor, ...] = ()

    def fill(self, layer: "IntegerLayer") -> None:
        """Take the tensors of a layer, outside of what is being recorded."""
        if not self.tensors:
            with _disable_current_modes():
                self.tensors = tuple(layer.state().values())
            vars(self.tensors[0])["layer"] = layer  # the operator need not pack it again

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


def is_recorded() -> bool:
    """Return True while torch records what a module computes."""
    is_compiling = torch.compiler.is_compiling()
    is_tracing = torch._C._get_tracing_state()  # noqa: SLF001  `torch.jit.is_tracing` in half its time
    if is_tracing or (is_compiling and torch.onnx.is_in_onnx_export()):
        raise cannot_record("torch.jit.trace and torch.onnx.export cannot record integer layers")
    return is_compiling


def record(layer: "IntegerLayer", inputs: list[Tensor]) -> list[Tensor]:
    """Return the results of a layer by the operator, so that a graph records it."""
    layer.unfold()
    results: list[Tensor] = torch.ops.tts_compress.integer_layer(
        inputs, layer.constants.tensors, layer.description
    )
    return results


class IntegerLayer(CompressedLayer):
    """A layer whose weights are packed for integer kernels.

    Args:
        geometry: The shape of the layer it replaces.
        state: `weight` (int8), `weight_scale` (FP32, one per output channel), `bias` where there
            is one, `input_scale` and `input_zero_point` where the rounding is static.
    """

    kept: ClassVar[Mapping[str, str]] = {}

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, state)
        self._unpacked = {name: tensor for name, tensor in state.items() if name != "weight"}
        self.bias = state.get("bias")  # packed with the weight; upstream code may take it off again
        if static := "input_scale" in state:
            self.activations = Activations.STATIC
        self.input_scale = float(state["input_scale"]) if static else None
        self.input_zero_point = int(state["input_zero_point"]) if static else 0
        items = {item.name: getattr(geometry, item.name) for item in fields(geometry)}
        del items["dtype"]  # a matter of tables
        # Arguments of the operator besides tensors: their names, as `state` orders them, and shape.
        self.description = json.dumps([["weight", *self._unpacked], items])
        self.constants = Constants()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's layers call it so
        """Return the outputs of the layer it replaces, in the type of the input."""
        return record(self, [input])[0] if is_recorded() else self.compute(input)

    @abstractmethod
    def compute(self, inputs: Tensor) -> Tensor:
        """Return the outputs, from kernels of torch."""

    def results(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return everything a layer computes from all that it takes."""
        return [self.compute(*inputs)]

    def unfold(self) -> bool:
        """Make the constants that a graph records; a compiler calls it instead of recording it."""
        self.constants.fill(self)
        return True

    # `torch.compiler.assume_constant_result` does this, and loads the compiler: 80 MB.
    vars(unfold)["_dynamo_marked_constant"] = True

    @classmethod
    @override
    def objection(cls, geometry: Geometry, group_size: int) -> str:
        if geometry.operator == "ConvTranspose1d" and geometry.dilation > 1:
            return "no integer kernel computes a dilated transposed convolution"
        channels = min(geometry.shape[0] // geometry.groups, geometry.shape[1])
        if geometry.groups > 1 and channels < _LEAST_CHANNELS:
            return "a convolution by channels is not faster in integers"
        return ""

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        """Refuse to leave the CPU: weights are packed for its kernels, and would stay behind."""
        del recurse  # nothing in here is cast either
        self.cast(fn)
        if (device := fn(torch.empty(0)).device.type) != "cpu":
            raise ModelError(
                f"integer layers compute on CPUs and cannot move to {device!r}; move the original "
                "there and compress it again, or use int8-weight-only, fp16 or bf16"
            )
        return self

    @override
    def state(self) -> dict[str, Tensor]:
        return {"weight": self.unpack(), **self._unpacked}

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """Refuse: there are no buffers, and torch would call nothing loaded a success."""
        prefix, errors = arguments[1], arguments[-1]
        errors.append(f"'{prefix}' is packed for kernels: use save_module and load_module")

    @abstractmethod
    def unpack(self) -> Tensor:
        """Return the codes of the weight, `int8`."""


@register_layer(nn.Linear, weights=Weights.INT8, activations=INTEGERS, device="cpu")
class Int8Linear(IntegerLayer):
    """A linear layer on `[..., inputs]`."""

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, state)
        tensors = (state["weight"], state["weight_scale"], state.get("bias"))
        self._packed = Packed(pack_linear, unpack_linear, *tensors)

    @override
    def compute(self, inputs: Tensor) -> Tensor:
        # The usual case first: a decoder's step runs hundreds of layers for microseconds each.
        if inputs.dtype is torch.float32 and inputs.dim() > 1:
            return self._multiply(inputs)
        rows = inputs.float() if inputs.dim() > 1 else inputs.float().unsqueeze(0)
        outputs = self._multiply(rows).to(inputs.dtype)  # the kernels want rows
        return outputs if inputs.dim() > 1 else outputs.squeeze(0)

    def _multiply(self, values: Tensor) -> Tensor:
        if self.input_scale is None:
            outputs: Tensor = torch.ops.quantized.linear_dynamic(values, self._packed.weight, False)
        else:
            outputs = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
                values, self.input_scale, self.input_zero_point, self._packed.weight
            )
        return outputs

    @override
    def unpack(self) -> Tensor:
        return self._packed.codes()


def pack_linear(codes: Tensor, scales: Tensor, bias: Tensor | None) -> Any:
    """Return a weight `[outputs, inputs]` ready for `quantized.linear_dynamic`."""
    supported, before = torch.backends.quantized.supported_engines, torch.backends.quantized.engine
    engine = next((name for name in _ENGINES if name in supported), None)
    if engine is None:
        raise ModelError(
            f"this build of torch has no integer kernels (engines: {', '.join(supported)}); "
            "use a scheme with FP32 arithmetic, such as int8-weight-only"
        )
    with warnings.catch_warnings():
        # Quantized tensors are deprecated as a way to write models; packing needs them.
        warnings.simplefilter("ignore")
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        weight = torch._make_per_channel_quantized_tensor(  # noqa: SLF001  its only constructor from codes
            codes.contiguous(), scales.double(), zeros, 0
        )
    try:
        torch.backends.quantized.engine = engine  # the packed weight remembers it
        return torch.ops.quantized.linear_prepack(weight, bias)
    finally:
        torch.backends.quantized.engine = before


def unpack_linear(packed: Any) -> Tensor:
    """Return the codes of a weight that `pack_linear` packed."""
    codes: Tensor = torch.ops.quantized.linear_unpack(packed)[0].int_repr()
    return codes


def is_pointwise(geometry: Geometry) -> bool:
    """Return True if a layer is a convolution that computes each frame from one frame."""
    window = (geometry.shape[2:], geometry.stride, geometry.padding, geometry.groups)
    plain = window == ((1,), 1, 0, 1) and not any(geometry.outer_padding)
    return plain and geometry.operator == "Conv1d"


@register_layer(
    nn.Conv1d, weights=Weights.INT8, activations=INTEGERS, device="cpu", only_for=is_pointwise
)
class Int8PointwiseConv1d(Int8Linear):
    """A convolution with a kernel of size 1 on `[batch, inputs, time]` or `[inputs, time]`.

    The kernels for linear layers are faster than onednn's for convolutions; most convolutions of
    NaturalSpeech2's estimator are such, which `make bench-torch` times as a whole.
    """

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, {**state, "weight": state["weight"].squeeze(-1)})

    @override
    def compute(self, inputs: Tensor) -> Tensor:
        return super().compute(inputs.transpose(-1, -2)).transpose(-1, -2)

    @override
    def unpack(self) -> Tensor:
        return super().unpack().unsqueeze(-1)


def _read(text: str) -> tuple[list[str], Geometry]:
    names, items = json.loads(text)
    lists = {key: tuple(value) for key, value in items.items() if isinstance(value, list)}
    return names, Geometry(**items | lists)


def _run(inputs: list[Tensor], state: list[Tensor], text: str) -> list[Tensor]:
    layer: Any = vars(state[0]).get("layer")
    if layer is None:
        names, geometry = _read(text)
        activations = Activations.STATIC if "input_scale" in names else Activations.DYNAMIC
        tensors = dict(zip(names, state, strict=True))
        layer = build_layer(geometry, Weights.INT8, activations, tensors)
        vars(state[0])["layer"] = layer
    # In the order that `_shapes` tells, whatever a kernel's is.
    return [result.contiguous() for result in layer.results(inputs)]


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


@register_layer(nn.Conv1d, weights=Weights.INT8, activations=INTEGERS, device="cpu")
class Int8Conv1d(IntegerLayer):
    """A convolution on `[batch, inputs, time]` or `[inputs, time]`.

    The kernels are onednn's, because they output FP32. `torch.ops.quantized.conv1d_dynamic` looks
    like one that does, but rounds its output to the codes of its *input*, and clips it to their
    range.
    """

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, state)
        window = ([geometry.stride], [geometry.padding], [geometry.dilation], geometry.groups)
        scales, zeros = state["weight_scale"], torch.zeros(geometry.shape[0], dtype=torch.int64)
        arguments = (state["weight"], scales, geometry.shape, window)
        self._packed = Packed(_pack_convolution, Tensor.to_dense, *arguments)
        self._kernel = (scales, zeros, state.get("bias"), *window)
        self._matrix: Packed | None = None

    @override
    def compute(self, inputs: Tensor) -> Tensor:
        if inputs.dim() == 3 and not len(inputs):  # the kernel takes one row or more
            return self.compute(inputs.new_zeros(1, *inputs.shape[1:]))[:0]
        values = pad(self.geometry, inputs.detach().float())  # the kernel has no gradients
        plain = plain_view(values)
        scale, zero_point = self._codes_of(plain)
        rounded = torch.quantize_per_tensor(plain, scale, zero_point, torch.quint8)
        # Without the copy that `int_repr` makes.
        codes = torch.empty(0, dtype=torch.uint8)
        codes.set_(rounded.untyped_storage(), 0, rounded.shape, rounded.stride())
        codes = codes if plain is values else codes.transpose(-1, -2)
        codes = codes.unsqueeze(0) if codes.dim() == 2 else codes
        if self.geometry.groups == 1 and codes.shape[0] * codes.shape[2] <= _MOST_ROWS:
            outputs = self._multiply(codes, scale, zero_point)
        else:
            outputs = torch.ops.onednn.qconv1d_pointwise(
                codes, scale, zero_point, self._packed.weight, *self._kernel, *_PLAIN_FP32_OUTPUT
            )
        return outputs.reshape(*values.shape[:-2], *outputs.shape[-2:]).to(inputs.dtype)

    def _multiply(self, codes: Tensor, scale: float, zero_point: int) -> Tensor:
        """Return the outputs for few frames, as one product of matrices: a row is a window."""
        shape, taps = self.geometry, self.geometry.shape[2]
        frames = F.pad(codes, (shape.padding, shape.padding), value=zero_point)
        frames = frames.transpose(-1, -2).contiguous()  # [batch, time, channels]
        reach = (taps - 1) * shape.dilation + 1
        windows = frames.unfold(1, reach, shape.stride)[..., :: shape.dilation]
        rows = windows.transpose(-1, -2).flatten(0, 1).flatten(1)  # [rows, taps * channels]
        if self._matrix is None:
            matrix = self.unpack().transpose(1, 2).flatten(1)
            self._matrix = Packed(_pack_matrix, _unpack_matrix, matrix)
        outputs: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, scale, zero_point, self._matrix.weight, *self._kernel[:3], *_PLAIN_FP32_OUTPUT
        )
        return outputs.view(len(codes), -1, outputs.shape[1]).transpose(-1, -2)

    @override
    def unpack(self) -> Tensor:
        return self._packed.codes().reshape(self.geometry.shape)

    def _codes_of(self, values: Tensor) -> tuple[float, int]:
        if self.input_scale is not None:
            return self.input_scale, self.input_zero_point
        # Not `aminmax`: on a million values it takes 1.5 times as long as both, on one thread.
        low, high = float(values.amin()), float(values.amax())
        if not math.isfinite(high - low):
            raise ValueError("an input of an integer convolution is not finite")
        return activation_codes(low, high)


def _pack_matrix(codes: Tensor) -> Tensor:
    packed: Tensor = torch.ops.onednn.qlinear_prepack(codes.contiguous(), None)
    return packed


def _unpack_matrix(packed: Tensor) -> Tensor:
    return packed.to_dense().t()


def _pack_convolution(
    codes: Tensor, scales: Tensor, shape: tuple[int, ...], window: tuple[Any, ...]
) -> Any:
    # The layout depends on neither scale nor zero point of the input.
    return torch.ops.onednn.qconv_prepack(codes.reshape(shape), scales, 1.0, 0, *window, None)


_PLAIN_FP32_OUTPUT: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
"""The kernel's last arguments: scale, zero point and type of its output, and nothing fused."""


@register_layer(nn.ConvTranspose1d, weights=Weights.INT8, activations=INTEGERS, device="cpu")
class Int8ConvTranspose1d(IntegerLayer):
    """A transposed convolution on `[batch, inputs, time]` or `[inputs, time]`, undilated.

    No integer kernel transposes; but each of the `stride` phases of the output is a plain
    convolution of the input, so it is one with `outputs × stride` channels, which are then
    interleaved. Its weight in a file has that shape, with a scale for each channel and phase.
    """

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, state)
        taps = state["weight"].shape[-1]
        plain = replace(
            geometry,
            operator="Conv1d",
            shape=tuple(state["weight"].shape),
            stride=1,
            padding=taps - 1,
            output_padding=0,
        )
        inner = dict(state)
        if "bias" in state:
            repeat = Tensor.repeat if geometry.groups == 1 else Tensor.repeat_interleave
            inner["bias"] = repeat(state["bias"], geometry.stride)
        self.phases = Int8Conv1d(plain, inner)

    @classmethod
    @override
    def quantize(cls, layer: FloatLayer) -> dict[str, Tensor]:
        phases = transposed_phases(layer.weight, layer.geometry)
        codes, scales = round_weight(phases, 0, multiplied=True)
        return {"weight": codes, "weight_scale": scales}

    @classmethod
    @override
    def stored_shape(cls, geometry: Geometry) -> tuple[int, ...]:
        empty = torch.empty(geometry.shape, device="meta")
        return tuple(transposed_phases(empty, geometry).shape)

    @override
    def compute(self, inputs: Tensor) -> Tensor:
        shape = self.geometry
        phases = self.phases.compute(inputs)
        outputs = phases.shape[-2] // shape.stride
        if shape.groups == 1:
            # With channels last the phases of a frame lie behind each other, in order of time.
            frames = phases.transpose(-1, -2)
            size = frames.shape[-2] * shape.stride, outputs
            woven = frames.reshape(*frames.shape[:-2], *size).transpose(-1, -2)
        else:
            split = outputs, shape.stride, phases.shape[-1]
            woven = phases.reshape(*phases.shape[:-2], *split)
            woven = woven.transpose(-1, -2).flatten(-2)
        length = (inputs.shape[-1] - 1) * shape.stride - 2 * shape.padding + shape.shape[2]
        cropped: Tensor = woven[..., shape.padding : shape.padding + length + shape.output_padding]
        return cropped

    @override
    def unpack(self) -> Tensor:
        return self.phases.unpack()


def transposed_phases(weight: Tensor, geometry: Geometry) -> Tensor:
    """Return the weight of the plain convolution that computes every phase of a transposed one.

    Args:
        weight: FP32, `[inputs, outputs / groups, taps]`.
        geometry: The shape of the transposed convolution.

    Returns:
        `[outputs * stride, inputs / groups, ceil((taps + output padding) / stride)]`.
    """
    stride, groups = geometry.stride, geometry.groups
    reach = -(-(weight.shape[2] + geometry.output_padding) // stride)
    padded = F.pad(weight, (0, reach * stride - weight.shape[2]))
    # [groups, inputs / groups, outputs / groups, reach, stride], the latest input first.
    parts = padded.reshape(groups, -1, weight.shape[1], reach, stride).flip(3)
    # Phase by phase, where groups, whose channels have to stay together, allow it.
    order = (0, 4, 2, 1, 3) if groups == 1 else (0, 2, 4, 1, 3)
    return parts.permute(*order).reshape(-1, weight.shape[0] // groups, reach)
