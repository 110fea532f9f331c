"""A layer that trains as if its weights, and what it is given, were integers."""

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn

from tts_compress.errors import QuantizationError
from tts_compress.qat.fake_quantize import (
    ActivationFakeQuantize,
    DynamicFakeQuantize,
    HistogramObserver,
    WeightFakeQuantize,
)
from tts_compress.recipes.recipe import Calibration
from tts_compress.torch.decisions import Decision
from tts_compress.torch.layers.base import CompressedLayer, build_layer, layer_state
from tts_compress.torch.layers.geometry import Geometry, apply_operator
from tts_compress.torch.layers.integer import is_pointwise

_LEAST_STEP_OF_LINEAR = 6.1e-5
"""torch's dynamic kernels for linear layers round no finer; its name there is
SMALL_SCALE_THRESHOLD."""


class FakeQuantizedLayer(nn.Module):
    """Stands in the place of a linear layer, a convolution or an embedding.

    Only what goes in is rounded: the integer layers that this one becomes return FP32.

    Args:
        module: The layer in FP32, whose parameters it takes over.
        decision: The format it is converted to.
        calibration: Settings of static ranges of its input; None where there are none.
        learned_ranges: True if these ranges are parameters.
    """

    def __init__(
        self,
        module: nn.Module,
        decision: Decision,
        calibration: Calibration | None,
        *,
        learned_ranges: bool = False,
    ) -> None:
        super().__init__()
        self.geometry = Geometry.of(module)
        vars(self).update(self.geometry.attributes())
        self.decision = decision
        self.weight: nn.Parameter = module.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = getattr(module, "bias", None)
        in_integers = decision.activations != "none"
        is_transposed = self.geometry.operator == "ConvTranspose1d"
        self.weight_fake_quant = WeightFakeQuantize(
            axis=self.geometry.channel_axis,
            multiplied=in_integers,
            group=decision.group_size if decision.weights == "int4" else None,
            phases=self.geometry if is_transposed and in_integers else None,
        )
        self.activation_fake_quant: ActivationFakeQuantize | DynamicFakeQuantize | None = None
        if decision.activations == "dynamic":
            is_linear = self.geometry.operator == "Linear" or is_pointwise(self.geometry)
            least = _LEAST_STEP_OF_LINEAR if is_linear else 0.0
            self.activation_fake_quant = DynamicFakeQuantize(least)
        elif decision.activations != "none":
            assert calibration is not None, "a recipe with static activations has one"
            observer = HistogramObserver(calibration)
            self.activation_fake_quant = ActivationFakeQuantize(observer, learned=learned_ranges)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's output with rounded values; `inputs` are indices for an embedding.

        Raises:
            QuantizationError: A weight, or a value that is observed, is not finite.
        """
        try:
            weight = self.weight_fake_quant(self.weight)
            if self.activation_fake_quant is not None:
                inputs = self.activation_fake_quant(inputs)
        except QuantizationError as error:
            raise QuantizationError(f"'{self.decision.module}': {error}") from error
        if self.geometry.operator == "Embedding":
            return F.embedding(inputs, weight)
        return apply_operator(self.geometry, inputs, weight, self.bias)

    @torch.no_grad()
    def build(self) -> CompressedLayer:
        """Return the compressed layer with the trained weight and range.

        Raises:
            QuantizationError: A weight is not finite.
        """
        weights, activations = self.decision.weights, self.decision.activations
        fake_quant, limits = self.activation_fake_quant, None
        if isinstance(fake_quant, ActivationFakeQuantize):
            limits = fake_quant.limits()
        try:
            state = layer_state(
                self, weights, activations, group_size=self.decision.group_size, limits=limits
            )
        except QuantizationError as error:
            raise QuantizationError(f"'{self.decision.module}': {error}") from error
        return build_layer(self.geometry, weights, activations, state)

    def extra_repr(self) -> str:
        """Return the description that printing the module shows."""
        shape = "×".join(map(str, self.geometry.shape))
        return f"{shape}, weights={self.decision.weights}, activations={self.decision.activations}"
