"""Linear layers that multiply integers: `int8` weights, activations rounded as they arrive.

The rounding of activations is dynamic (the range of this very input) or static (a range from
calibration). The outputs are FP32, so everything between two layers stays as it was.

The kernels are those of `torch.ops.quantized`: activations are rounded to `uint8` with one scale
for the tensor, weights to `int8` with one scale per output channel, sums are 32-bit. `fbgemm` and
`onednn` are two implementations of them on x86, `qnnpack` one on ARM. On x86 `fbgemm` comes first:
it takes 0.86 of `onednn`'s time on one row, the case of autoregressive models, and 1.08 on 512 rows
(AVX512-VNNI, one thread); and `onednn` has no ranges known before.
"""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from tts_compress.errors import ModelError
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import CompressedLayer, register_layer
from tts_compress.torch.layers.geometry import Geometry
from tts_compress.torch.layers.operator import (
    Constants,
    describe_layer,
    is_recorded,
    record,
)

INTEGERS = (Activations.DYNAMIC, Activations.STATIC)
_ENGINES = ("fbgemm", "onednn", "qnnpack")
"""Implementations, the preferred one first."""

_LEAST_CHANNELS = 8
"""Channels of a group below which integers are not faster than FP32."""


class Packed:
    """A weight in the layout of a kernel, which nothing else can read.

    Copies share it, because nothing changes it. A pickle holds the codes it is packed from again.

    Args:
        pack: Returns what the kernel takes, for codes and further arguments.
        unpack: Returns the codes of that.
        arguments: The codes, and what else `pack` takes.
    """

    def __init__(
        self, pack: Callable[..., Any], unpack: Callable[[Any], Tensor], *arguments: Any
    ) -> None:
        self.weight = pack(*arguments)
        self._rest = (pack, unpack, arguments[1:])

    def codes(self) -> Tensor:
        """Return the codes, in the shape that the kernel gives them."""
        return self._rest[1](self.weight)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the same, which torch cannot copy."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how a pickle is read."""
        pack, unpack, arguments = self._rest
        return type(self), (pack, unpack, self.codes(), *arguments)


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
        if static := "input_scale" in state:
            self.activations = Activations.STATIC
        self.input_scale = float(state["input_scale"]) if static else None
        self.input_zero_point = int(state["input_zero_point"]) if static else 0
        names = ["weight", *self._unpacked]  # as `state` orders them
        self.constants, self.description = Constants(), describe_layer(geometry, names)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the layer it replaces, in the type of the inputs."""
        return record(self, [inputs])[0] if is_recorded() else self.compute(inputs)

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
    def objection(cls, geometry: Geometry, group_size: int) -> str:
        """Return an objection to dilation of a transposed convolution, and to narrow groups."""
        del group_size
        if geometry.operator == "ConvTranspose1d" and geometry.dilation > 1:
            return "no integer kernel computes a dilated transposed convolution"
        channels = min(geometry.shape[0] // geometry.groups, geometry.shape[1])
        if geometry.groups > 1 and channels < _LEAST_CHANNELS:
            return "a convolution by channels is not faster in integers"
        return ""

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        """Refuse to leave the CPU: weights are packed for its kernels, and would stay behind.

        Raises:
            ModelError: The layer is moved to another device.
        """
        del recurse  # nothing in here is cast either
        if (device := fn(torch.empty(0)).device.type) != "cpu":
            raise ModelError(
                f"integer layers compute on CPUs and cannot move to {device!r}; move the original "
                "there and compress it again, or use int8-weight-only, fp16 or bf16"
            )
        return self

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a file keeps."""
        return {"weight": self.unpack(), **self._unpacked}

    @abstractmethod
    def unpack(self) -> Tensor:
        """Return the codes of the weight, `int8`."""


@register_layer(nn.Linear, weights=Weights.INT8, activations=INTEGERS, device="cpu")
class Int8Linear(IntegerLayer):
    """A linear layer on `[..., inputs]`."""

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, state)
        given = (state["weight"], state["weight_scale"], state.get("bias"))
        self._packed = Packed(pack_linear, unpack_linear, *given)

    def compute(self, inputs: Tensor) -> Tensor:
        """Return `[..., outputs]` in the type of the inputs."""
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

    def unpack(self) -> Tensor:
        """Return the codes of the weight."""
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

    def compute(self, inputs: Tensor) -> Tensor:
        """Return `[batch, outputs, time]` in the type of the inputs."""
        return super().compute(inputs.transpose(-1, -2)).transpose(-1, -2)

    def unpack(self) -> Tensor:
        """Return the codes of the weight."""
        return super().unpack().unsqueeze(-1)
