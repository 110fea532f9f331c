"""Compressed layers and their registry; weights and ranges as small integers and scales.

A layer is added by one file in this folder: a subclass of `CompressedLayer`, decorated by
`register_layer`. Other packages name modules with theirs as entry points of the group
`tts_compress.layers`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from itertools import chain, product
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from tts_compress.errors import ModelError, QuantizationError
from tts_compress.numerics.ranges import LEVELS
from tts_compress.numerics.weights import round_weight
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.geometry import Geometry, bias_of, weights_of

GROUP_LIMIT = 7
"""The largest magnitude of a four-bit code."""


def finite(tensor: Tensor, kind: torch.dtype) -> Tensor:
    """Return a tensor in another type, if that holds all of its values.

    Raises:
        QuantizationError: A value is too large for the type, or not finite.
    """
    values = tensor.to(kind)
    if not torch.isfinite(values).all():
        raise QuantizationError(f"a weight of {tensor.abs().max():g} is too large for {kind}")
    return values


def from_rows(rows: Tensor, shape: Sequence[int], axis: int) -> Tensor:
    """Return the weight of a shape whose channels on `axis` are rows `[channels, all else]`."""
    others = [extent for d, extent in enumerate(shape) if d != axis]
    return rows.view(-1, *others).movedim(0, axis)


def group_scales(weight: Tensor, group: int) -> Tensor:
    """Return the scale of each group of inputs that rounds its largest weight to the limit.

    Args:
        weight: FP32, `[outputs, inputs]`; `inputs` is a multiple of `group`.
        group: Inputs that share a scale.

    Returns:
        bfloat16, the type of torch's four-bit kernel, `[outputs, inputs / group]`.
    """
    peaks = weight.reshape(weight.shape[0], -1, group).abs().amax(-1)
    scales = torch.where(peaks > 0, peaks / GROUP_LIMIT, torch.ones_like(peaks))
    return scales.to(torch.bfloat16).clamp_min(torch.finfo(torch.bfloat16).tiny)


def round_groups(weight: Tensor, scales: Tensor) -> Tensor:
    """Return four-bit codes, int8 in [-8, 7], of a weight `[outputs, inputs]`.

    Args:
        weight: FP32, finite.
        scales: `[outputs, groups]`.
    """
    grouped = weight.reshape(*scales.shape, -1)
    codes = (grouped / scales.float().unsqueeze(-1)).round()
    return codes.clamp(-GROUP_LIMIT - 1, GROUP_LIMIT).to(torch.int8).reshape(weight.shape)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Return two codes per byte, the earlier in the low half.

    Args:
        codes: int8 in [-8, 7], `[..., n]` with even `n`.

    Returns:
        uint8, `[..., n / 2]`.
    """
    unsigned = (codes + 8).to(torch.uint8)
    return unsigned[..., 0::2] | (unsigned[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Return the codes that `pack_nibbles` packed, int8."""
    low, high = packed & 0x0F, packed >> 4
    return (torch.stack((low, high), -1).flatten(-2).to(torch.int8)) - 8


def activation_codes(low: float, high: float) -> tuple[float, int]:
    """Return scale and zero point of `uint8` codes for a range, extended to include zero.

    torch's kernels take the scale in float64, unlike graphs (`numerics.ranges`).
    """
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / LEVELS, float(torch.finfo(torch.float32).tiny))
    return scale, round(-low / scale)


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


_BUFFERS = {"weight": "codes", "weight_scale": "scales", "bias": "bias"}


@dataclass(frozen=True, slots=True)
class FloatLayer:
    """A layer in FP32 that is to be compressed."""

    geometry: Geometry
    weight: Tensor
    """As torch lays it out; the matrices of a recurrent layer in one row."""

    group_size: int


class CompressedLayer(nn.Module):
    """Replaces a torch layer, with its weights in fewer bits.

    It has that layer's attributes too, such as `in_features` or `kernel_size`. Layers of one
    format keep the same tensors in a file, so that a layer for GPUs can be restored as the one for
    CPUs.

    Args:
        geometry: The shape of the layer it replaces.
        state: As `quantize` or `state` returned it, and `bias` where there is one.
    """

    weights: Weights
    activations: Activations
    """Formats of weights and arithmetic, as `register_layer` names them."""

    kept: ClassVar[Mapping[str, str]] = _BUFFERS
    """Names of buffers by the names of their tensors in a file."""

    codes: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        vars(self).update(geometry.attributes)
        self.geometry = geometry
        for name, buffer in self.kept.items():
            self.register_buffer(buffer, state.get(name) if name == "bias" else state[name])

    @classmethod
    def objection(cls, geometry: Geometry, group_size: int) -> str:
        """Return the reason why it cannot replace a layer of that shape; nothing if it can."""
        del geometry, group_size
        return ""

    @classmethod
    def quantize(cls, layer: FloatLayer) -> dict[str, Tensor]:
        """Return the tensors of a finite weight that is rounded to nearest, as `state` names them.

        By default 8-bit codes with a scale per output channel.
        """
        multiplied = cls.activations != Activations.NONE
        axis = layer.geometry.channel_axis
        codes, scales = round_weight(layer.weight, axis, multiplied=multiplied)
        return {"weight": codes, "weight_scale": scales}

    @classmethod
    def stored_shape(cls, geometry: Geometry) -> tuple[int, ...]:
        """Return the shape of `weight` in the state of such a layer."""
        return geometry.shape

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a file keeps, by name; `weight` first."""
        held = {name: getattr(self, buffer) for name, buffer in self.kept.items()}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        """Move, but cast nothing: the kernels take these types, and codes lose what scales lose."""

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        self.cast(fn)
        applied: Self = super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return applied

    def cast(self, fn: Callable[..., Tensor]) -> None:
        """Return outputs in the type that `fn` gives to tensors, where inputs do not decide it."""
        kind = fn(torch.empty(0, dtype=self.geometry.dtype)).dtype
        self.geometry = replace(self.geometry, dtype=kind)

    @property
    def weight(self) -> Tensor:
        """A tensor in the weight's shape and type, on its device, that holds no value but NaN.

        Upstream code asks a layer's weight for these before it converts the inputs or makes room
        for a state; the codes themselves are packed for the processor.
        """
        tensors = chain(self.parameters(), self.buffers())
        device = next((tensor.device for tensor in tensors), None)
        return torch.full((), torch.nan, dtype=self.geometry.dtype, device=device).expand(
            self.geometry.shape
        )

    @override
    def extra_repr(self) -> str:
        shape = "×".join(map(str, self.geometry.shape))
        return f"{shape}, weights={self.weights}, activations={self.activations}"

    if TYPE_CHECKING:  # nn.Module leaves it untyped; at run time it would cost every call

        def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
            """Run the layer."""


_LayerT = TypeVar("_LayerT", bound=type[CompressedLayer])
_Condition = Callable[[Geometry], bool]
_REGISTRY: dict[tuple[str, str, str], list[tuple[type[CompressedLayer], str, _Condition]]] = {}
"""By operator, weights and activations: layers, their device if only one, and their condition."""


def register_layer(
    *kinds: type[nn.Module],
    weights: Weights,
    activations: Sequence[Activations] = (Activations.NONE,),
    device: str = "",
    only_for: _Condition | None = None,
) -> Callable[[_LayerT], _LayerT]:
    """Register the decorated class as a compressed layer.

    Args:
        kinds: The modules it replaces.
        weights: The format of its weights.
        activations: The types of its arithmetic.
        device: The type of device it runs on, if only one.
        only_for: A condition on the shape; such a layer goes before those for any shape.
    """

    def register(layer: _LayerT) -> _LayerT:
        layer.weights, layer.activations = weights, activations[0]
        for kind, arithmetic in product(kinds, activations):
            rows = _REGISTRY.setdefault((kind.__name__, weights, arithmetic), [])
            entry = (layer, device, only_for or (lambda _: True))
            rows.insert(0 if only_for else len(rows), entry)
        return layer

    return register


@cache
def _import_layers() -> None:
    """Import every file that registers a layer."""
    for module in iter_modules([str(Path(__file__).parent)]):
        import_module(f"{__package__}.{module.name}")
    for point in entry_points(group="tts_compress.layers"):
        point.load()


def is_layer(weights: str, activations: str) -> bool:
    """Return True if a format replaces layers; others change at most how a file stores them."""
    _import_layers()
    return any(key[1:] == (weights, activations) for key in _REGISTRY)


def find_layer(
    geometry: Geometry, weights: str, activations: str, *, device: str = "cpu"
) -> type[CompressedLayer] | None:
    """Return the registered layer for a shape, a format and a type of device."""
    _import_layers()
    rows = _REGISTRY.get((geometry.operator, weights, activations), [])
    fitting = (layer for layer, only, fits in rows if only in {"", device} and fits(geometry))
    return next(fitting, None)


def layer_state(
    module: nn.Module,
    weights: str,
    activations: str,
    *,
    group_size: int = 64,
    limits: tuple[float, float] | None = None,
    device: str = "cpu",
) -> dict[str, Tensor]:
    """Return the tensors of the compressed layer that replaces a module, rounded to nearest.

    Args:
        module: A linear layer, convolution or embedding in FP32, with finite weights.
        weights: The format of the weights.
        activations: The type of the arithmetic.
        group_size: Weights that share a scale, for four bits.
        limits: The range of its input, for static activations.
        device: The type of device the layer runs on.
    """
    geometry = Geometry.of(module)
    layer = find_layer(geometry, weights, activations, device=device)
    assert layer is not None, "a decision is for a layer there is"
    real = torch.float32
    parts = [finite(weight.detach(), real).contiguous() for weight in weights_of(module)]
    weight = parts[0] if len(parts) == 1 else torch.cat([part.flatten() for part in parts])
    state = layer.quantize(FloatLayer(geometry, weight, group_size))
    if (bias := bias_of(module)) is not None:
        state["bias"] = finite(bias.detach(), real).clone()
    if activations == Activations.STATIC:
        assert limits is not None, "calibration chose a range for every static layer"
        scale, zero_point = activation_codes(*limits)
        state["input_scale"] = torch.tensor(scale, dtype=torch.float64)
        state["input_zero_point"] = torch.tensor(zero_point, dtype=torch.int32)
    return state


def build_layer(
    geometry: Geometry,
    weights: str,
    activations: str,
    state: Mapping[str, Tensor],
    *,
    device: str = "cpu",
) -> CompressedLayer:
    """Return the layer of a format for the tensors that `layer_state` or `state` returned.

    Raises:
        ValueError: There is no such layer, or the tensors are not of its shape.
    """
    layer = find_layer(geometry, weights, activations, device=device)
    if layer is None:
        raise ValueError(
            f"there is no {geometry.operator} with {weights} weights and {activations} activations"
        )
    stored, needed = tuple(state["weight"].shape), layer.stored_shape(geometry)
    if stored != needed:
        raise ValueError(f"its weight is stored in shape {stored} in the place of {needed}")
    return layer(geometry, state)


def share_weight(leader: nn.Module, layer: nn.Module) -> None:
    """Let a layer hold the very tensors of another one that are equal to its own, save biases."""
    held = dict(leader.named_buffers(recurse=False))
    for name, tensor in layer.named_buffers(recurse=False):
        if "bias" not in name and name in held and torch.equal(held[name], tensor):
            setattr(layer, name, held[name])


def cannot_record(problem: str) -> ModelError:
    """Return the error for layers that an exporter of torch cannot record."""
    return ModelError(
        f"{problem}; for ONNX export the FP32 module and compress the graph (`tts-compress "
        "quantize onnx:FILE`), else use torch.export.export"
    )


def walk_layers(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module with its dotted name, but not the parts of compressed layers."""
    inside: str | None = None
    for name, module in root.named_modules():
        if inside is not None and name.startswith(inside):
            continue
        if isinstance(module, CompressedLayer):
            inside = f"{name}." if name else ""
        yield name, module
