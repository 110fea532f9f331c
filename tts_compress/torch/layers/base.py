"""What a compressed layer is: the shape of the layer it stands for, and its tensors in a file."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tts_compress.torch.layers.attributes import layer_attributes

if TYPE_CHECKING:
    from tts_compress.recipes.formats import Activations, Weights

__all__ = ["CompressedLayer", "Geometry", "operator_of"]

_FORWARD: dict[type[nn.Module], str] = {
    nn.Linear: "Linear",
    nn.Conv1d: "Conv1d",
    nn.ConvTranspose1d: "ConvTranspose1d",
    nn.Embedding: "Embedding",
}


def operator_of(module: nn.Module) -> str | None:
    """Return the name of the operator a module computes; None where no layer here stands for it.

    A subclass counts where it computes what its base class does; one with a `forward` of its own
    may do anything.
    """
    for kind, name in _FORWARD.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return name
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Everything about a layer but its weights."""

    operator: str
    """`Linear`, `Conv1d`, `ConvTranspose1d` or `Embedding`."""

    shape: tuple[int, ...]
    """Of the weight, as torch lays it out."""

    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    output_padding: int = 0
    padding_mode: str = "zeros"

    @staticmethod
    def of(module: nn.Module) -> Geometry:
        """Return the geometry of a torch layer, which may be without memory (`meta`)."""
        operator = operator_of(module)
        assert operator is not None, type(module)
        shape = tuple(module.weight.shape)  # type: ignore[arg-type]
        if not isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
            return Geometry(operator=operator, shape=shape)
        return Geometry(
            operator=operator,
            shape=shape,
            stride=module.stride[0],
            padding=_padding(module),
            dilation=module.dilation[0],
            groups=module.groups,
            output_padding=module.output_padding[0],
            padding_mode=module.padding_mode,
        )

    @property
    def channel_axis(self) -> int:
        """The axis of the weight's output channels; of an embedding, its rows."""
        return 1 if self.operator == "ConvTranspose1d" else 0


def _padding(module: nn.Conv1d | nn.ConvTranspose1d) -> int:
    if not isinstance(module.padding, str):
        return module.padding[0]
    total = module.dilation[0] * (module.kernel_size[0] - 1)
    # `same` with an even reach pads one sample more behind; -1 says that no number does it.
    return 0 if module.padding == "valid" else total // 2 if total % 2 == 0 else -1


class CompressedLayer(nn.Module):
    """Stands in the place of a torch layer, with its weights in fewer bits.

    It has that layer's attributes too, such as `in_features` or `kernel_size`.

    Args:
        geometry: Of the layer it stands for.
        weights: How the weights are stored.
        activations: What the arithmetic runs on.
    """

    def __init__(self, geometry: Geometry, weights: Weights, activations: Activations) -> None:
        super().__init__()
        vars(self).update(layer_attributes(geometry))
        self.geometry = geometry
        self.weights: Weights = weights
        self.activations: Activations = activations

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a file keeps, by name; `weight` first."""

    @property
    def weight(self) -> Tensor:
        """A tensor without memory in the weight's shape and stored type.

        Upstream code asks a layer's weight for its type before it converts what goes in; the codes
        themselves are packed for the processor.
        """
        return torch.empty(self.geometry.shape, dtype=self.stored_type, device="meta")

    @property
    def stored_type(self) -> torch.dtype:
        """The type of the codes; T5 converts what goes in to any other than `int8`."""
        return torch.int8

    def extra_repr(self) -> str:
        """Return what printing the module shows."""
        shape = "×".join(map(str, self.geometry.shape))
        return f"{shape}, weights={self.weights}, activations={self.activations}"

    if TYPE_CHECKING:  # what nn.Module leaves untyped; at run time it would cost every call

        def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
            """Run the layer."""
