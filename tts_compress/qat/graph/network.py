"""ONNX graphs as torch modules, so that what a graph alone is known of can be trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from tts_compress.errors import QuantizationError
from tts_compress.qat.fake_quantize import ActivationFakeQuantize
from tts_compress.qat.graph.operators import find_operator, read_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt

    from tts_compress.numerics.histogram import Range
    from tts_compress.qat.graph.part import GraphPart

__all__ = ["GraphNetwork", "NodeRounding"]

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "LayerNormalization", "MatMul"})
"""Operators whose constants are learned; any other constant is part of what the graph means."""


class NodeRounding(Protocol):
    """What is rounded where a node computes."""

    @property
    def besides(self) -> tuple[str, ...]:
        """Names of tensors that it has to see, besides the node's inputs."""

    def compute(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        values: list[Tensor | None],
        besides: list[Tensor | None],
    ) -> tuple[Tensor, ...]:
        """Return the node's outputs as its readers are to see them.

        Args:
            function: Computes the node.
            values: Its inputs, as they are.
            besides: The tensors of those names.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Step:
    compute: Callable[..., tuple[Tensor, ...]]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    last_read: tuple[str, ...]
    """What nobody reads behind this step."""

    rounding: NodeRounding | None


class GraphNetwork(nn.Module):
    """A part of an ONNX graph, computed in torch.

    The constants of its weighted operators are parameters, unless the rest of the graph reads them
    too; gradients flow from every output to every input and parameter.

    Args:
        part: Which nodes, between which tensors.
        roundings: What is rounded at which node, by the node's first output.
        quantizers: The modules that `roundings` round with; they train, move and are saved with
            the network.

    Raises:
        QuantizationError: An operator, or the type of a constant, is unknown in torch.
    """

    def __init__(
        self,
        part: GraphPart,
        *,
        roundings: Mapping[str, NodeRounding] | None = None,
        quantizers: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.inputs = part.inputs
        self.outputs = part.outputs
        learned = {
            name
            for node in part.nodes
            if node.op_type in _WEIGHTED
            for name in node.input[0 if node.op_type == "MatMul" else 1 :]
        } - part.shared
        self._places: dict[str, str] = {}
        self._positions: dict[str, Tensor] = {}
        for tensor in part.constants:
            self._keep(tensor.name, read_tensor(tensor), learned=tensor.name in learned)
        self._quantizers = tuple(quantizers or ())
        self.quantizers = nn.ModuleDict(
            {_attribute(name): module for name, module in (quantizers or {}).items()}
        )
        self._steps = _steps(part, roundings or {})

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return the part's outputs for its inputs, both in the order of their names.

        Raises:
            QuantizationError: There are more or fewer values than inputs.
        """
        if len(values) != len(self.inputs):
            raise QuantizationError(
                f"the network was given {len(values)} tensors; "
                f"it takes {len(self.inputs)}: {', '.join(self.inputs)}"
            )
        known: dict[str, Tensor | None] = {"": None}
        known |= zip(self.inputs, values, strict=True)
        known |= {name: getattr(self, place) for name, place in self._places.items()}
        known |= {name: t for name, t in self._positions.items() if name not in known}
        for step in self._steps:
            arguments = [known[name] for name in step.reads]
            if step.rounding is None:
                made = step.compute(*arguments)
            else:
                besides = [known[name] for name in step.rounding.besides]
                made = step.rounding.compute(step.compute, arguments, besides)
            # A node may make more than it is asked for.
            known |= {name: value for name, value in zip(step.makes, made, strict=False) if name}
            for name in step.last_read:
                del known[name]
        return tuple(_present(known[name]) for name in self.outputs)

    def constants(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the learned constants by their names in the graph, FP32."""
        return {
            name: value.detach().cpu().numpy().copy()
            for name, place in self._places.items()
            if isinstance(value := getattr(self, place), nn.Parameter)
        }

    def ranges(self) -> dict[str, Range]:
        """Return what each quantizer with a range of its own rounds in, by its name."""
        modules = ((name, self.quantizers[_attribute(name)]) for name in self._quantizers)
        return {
            name: module.limits()
            for name, module in modules
            if isinstance(module, ActivationFakeQuantize)
        }

    def _keep(self, name: str, value: Tensor, *, learned: bool) -> None:
        if not value.is_floating_point():
            # Sizes and positions stay on the processor, wherever the data moves.
            self._positions[name] = value
            return
        self._places[name] = place = _attribute(name)
        if hasattr(self, place):
            raise QuantizationError(f"two constants of the graph are called like '{name}'")
        if learned:
            self.register_parameter(place, nn.Parameter(value))
        else:
            self.register_buffer(place, value)


def _steps(part: GraphPart, roundings: Mapping[str, NodeRounding]) -> list[_Step]:
    constant = {tensor.name for tensor in part.constants}
    seen = {"", *part.outputs, *constant}
    steps: list[_Step] = []
    for node in reversed(part.nodes):
        reads, makes = tuple(node.input), tuple(node.output)
        rounding = roundings.get(makes[0])
        besides = rounding.besides if rounding is not None else ()
        last = dict.fromkeys(name for name in (*reads, *besides, *makes) if name not in seen)
        seen |= last.keys()
        steps.append(
            _Step(
                compute=find_operator(node, part.opset),
                reads=reads,
                makes=makes,
                last_read=tuple(last),
                rounding=rounding,
            )
        )
    return steps[::-1]


def _attribute(name: str) -> str:
    """Return a graph's name as one that torch accepts of a parameter."""
    return "graph/" + name.replace(".", "/")


def _present(value: Tensor | None) -> Tensor:
    assert value is not None
    return value
