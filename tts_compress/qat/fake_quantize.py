"""Modules that round as integer layers will, and let gradients through.

Names and switches are those of `torch.ao.quantization`: a `FakeQuantize` observes a range while its
observer is on, and rounds while its fake quantization is on. torchao has such modules for linear
layers only, and none with static ranges; convolutions are most of a vocoder.

In the backward pass rounding counts as the identity, and clipping as clipping (the straight-through
estimator); trained ranges get the gradients of "Learned Step Size Quantization" (Esser et al.,
2020, arXiv 1902.08153).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import LEVELS, Histogram, Range, choose_range
from tts_compress.numerics.weights import HIGHEST, LOWEST, Blocks, round_weight
from tts_compress.recipes.recipe import Calibration
from tts_compress.torch.layers.base import activation_codes, from_rows, group_scales, round_groups
from tts_compress.torch.layers.geometry import Geometry
from tts_compress.torch.layers.integer import transposed_phases
from tts_compress.torch.observe import add_sample

_WITHIN = 0.499
"""Steps from a code within which a weight is surely rounded to it."""


def pass_through(values: Tensor, rounded: Tensor) -> Tensor:
    """Return `rounded`, with gradients as if it were `values`."""
    return rounded.detach() + (values - values.detach())


def round_affine(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return values rounded to 8 bits in a range.

    Gradients flow into what is not clipped, and into the range's ends if they require any.
    """
    result: Tensor = _RoundAffine.apply(values, low, high)  # type: ignore[no-untyped-call]
    return result


class _RoundAffine(torch.autograd.Function):
    """One function in the place of a chain of small ones, each of which would keep a tensor."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, low: Tensor, high: Tensor) -> Tensor:
        step, zero = activation_codes(float(low), float(high))
        scale = torch.tensor(step)
        first, last = -zero, LEVELS - zero
        # The very numbers of `torch.fake_quantize_per_tensor_affine`, whose loop is not vectorized
        # on processors.
        rounded = torch.mul(values, 1 / scale).round_().clamp_(first, last).mul_(scale)
        low, high = first * scale, last * scale
        if ctx.needs_input_grad[1]:
            ctx.save_for_backward(values, low, high, rounded)
        else:
            # As torch counts it, a value that rounds to the outermost codes is not clipped.
            half = (high - low) / LEVELS / 2
            ctx.save_for_backward(values, low - half, high + half)
        return rounded

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        values, low, high, *others = ctx.saved_tensors
        # Torch's kernel for this leaves the ends out; it is one pass where comparisons are five.
        below = torch.nextafter(low, torch.full_like(low, -torch.inf))
        above = torch.nextafter(high, torch.full_like(high, torch.inf))
        inside = torch.ops.aten.hardtanh_backward(gradient, values, float(below), float(above))
        if not others:
            return inside, None, None
        # A wider range moves every code away from its zero, by its share of the range.
        rounding = torch.dot((others[0] - values).flatten(), inside.flatten()) / (high - low)
        clipped = gradient - inside
        # A clipped value that is positive is above the range, which holds zero.
        to_high = torch.ops.aten.threshold_backward(clipped, values, 0).sum()
        to_low = clipped.sum() - to_high
        # The paper's factor; the batch does not count, so that its size changes no gradient.
        features = values.numel() // max(values.shape[0], 1) if values.dim() else 1
        factor = (max(features, 1) * LEVELS) ** -0.5
        ends = (to_low - rounding) * factor, (to_high + rounding) * factor
        return inside, ends[0].double(), ends[1].double()


class FakeQuantize(nn.Module):
    """Rounds to codes and back, where it is switched on; the switches are part of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.observer_enabled: Tensor
        self.fake_quant_enabled: Tensor
        self.register_buffer("observer_enabled", torch.tensor([1], dtype=torch.uint8))
        self.register_buffer("fake_quant_enabled", torch.tensor([1], dtype=torch.uint8))


class ActivationFakeQuantize(FakeQuantize):
    """8 bits for a whole tensor, in an observed range, which may be trained further.

    A trained range starts as the observed one. The parameter is the logarithm of the factor by
    which each end moved, because an optimizer's steps should be as large for a range of 0.01 as
    for one of 100.
    """

    def __init__(self, settings: Calibration, *, learned: bool = False) -> None:
        super().__init__()
        self.settings = settings
        self.seen = Histogram()
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", torch.tensor(0.0, dtype=torch.float64))
        self.register_buffer("high", torch.tensor(0.0, dtype=torch.float64))
        self.log_stretch = nn.Parameter(torch.zeros(2)) if learned else None

    def forward(self, values: Tensor) -> Tensor:
        """Return values, rounded or not, in their own type."""
        if self.observer_enabled[0] and values.numel():
            add_sample(self.seen, values.detach())
            if self.fake_quant_enabled[0]:
                self.adopt()
        if not self.fake_quant_enabled[0]:
            return values
        return round_affine(values.float(), *self._ends()).to(values.dtype)

    def adopt(self) -> bool:
        """Take over the observed range; return False if nothing was observed."""
        if self.seen.low > self.seen.high:
            return False
        self.set_limits(choose_range(self.seen, self.settings))
        return True

    def set_limits(self, limits: Range) -> None:
        """Set the range; its training starts again."""
        with torch.no_grad():
            self.low.fill_(min(limits[0], 0.0))
            self.high.fill_(max(limits[1], 0.0))
            if self.log_stretch is not None:
                self.log_stretch.zero_()

    def limits(self) -> Range:
        """Return the range that values are rounded in: exactly what the codes reach.

        Scale and zero point computed from it anew are the same in any precision.
        """
        with torch.no_grad():
            low, high = self._ends()
        scale, zero = activation_codes(float(low), float(high))
        return -zero * scale, (LEVELS - zero) * scale

    def _ends(self) -> tuple[Tensor, Tensor]:
        """Return the range, FP64 scalars; copies, because observing changes buffers in place."""
        low, high = self.low.clone(), self.high.clone()
        if self.log_stretch is None:
            return low, high
        factors = self.log_stretch.double().exp()
        return low * factors[0], high * factors[1]


class DynamicFakeQuantize(FakeQuantize):
    """8 bits in the range of the very tensor that is rounded; there is nothing to observe."""

    def __init__(self, least_step: float = 0.0) -> None:
        super().__init__()
        self.least_step = least_step

    def forward(self, values: Tensor) -> Tensor:
        """Return values, rounded or not, in their own type."""
        if not self.fake_quant_enabled[0] or not values.numel():
            return values
        low, high = (end.double() for end in torch.aminmax(values.detach()))
        if self.least_step:
            span = high.clamp(min=0) - low.clamp(max=0)
            least = self.least_step * LEVELS
            stretch = torch.where(span > 0, least / span, 1).clamp(min=1)
            low, high = low * stretch, high * stretch
        return round_affine(values.float(), low, high).to(values.dtype)


class WeightFakeQuantize(FakeQuantize):
    """A weight's codes, with scales that follow its peaks.

    Scales are computed from the weight each time, by post-training quantization's own rounding:
    what is trained is what quantizing the trained weight gives. Nothing is observed.

    Args:
        axis: Axis of the output channels; 1 in a transposed convolution.
        multiplied: True if integer kernels multiply the 8-bit codes, which may overflow on no
            processor.
        group: Four bits in groups of so many values of a channel, as layers in torch have them;
            None for 8 bits.
        phases: Geometry of a transposed convolution that is computed in integers: each phase of
            its output is a channel of its own there, with a scale of its own.
    """

    def __init__(
        self,
        *,
        axis: int = 0,
        multiplied: bool = False,
        group: int | None = None,
        phases: Geometry | None = None,
    ) -> None:
        super().__init__()
        self.axis = axis
        self.multiplied = multiplied
        self.group = group
        self.phases = phases

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight, rounded or not."""
        if not self.fake_quant_enabled[0]:
            return weight
        with torch.no_grad():
            codes, scales = self.codes(weight)
            rounded = self._from_channels(codes * scales.float().unsqueeze(-1), weight.shape)
        return pass_through(weight, rounded)

    def codes(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes and scales as post-training quantization chooses them.

        Returns:
            int8 codes, `[channels, all else]` or `[channels, groups, group]`, and scales: FP32
            `[channels]`, or of groups bfloat16 `[channels, groups]`.
        """
        if not torch.isfinite(weight).all():
            raise QuantizationError("a weight is not finite; the checkpoint is damaged")
        channels = self.channels(weight)
        if self.group is None:
            codes, scales = round_weight(channels.detach(), 0, multiplied=self.multiplied)
            return codes.flatten(1), scales
        rows = channels.flatten(1)
        scales = group_scales(rows, self.group)
        return round_groups(rows, scales).view(*scales.shape, self.group), scales

    def channels(self, weight: Tensor) -> Tensor:
        """Return the weight as it is rounded, channels first."""
        if self.phases is not None:
            return transposed_phases(weight, self.phases)
        return weight.movedim(self.axis, 0)

    def _from_channels(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the weight of a shape whose channels are rows."""
        if self.phases is not None:
            return _from_phases(rows, self.phases)
        return from_rows(rows.flatten(1), shape, self.axis)


class BlockFakeQuantize(WeightFakeQuantize):
    """The codes of a four-bit weight of a graph, with the factors and scales it began with.

    Post-training quantization chose factors and scales, and with GPTQ also codes that are not the
    nearest ones. Training starts from these codes, and changes nothing but codes.
    """

    def __init__(
        self, blocks: Blocks[Tensor], *, axis: int = 0, phases: Geometry | None = None
    ) -> None:
        super().__init__(axis=axis, phases=phases)
        self.factors: Tensor
        self.scales: Tensor
        self.register_buffer("factors", blocks.factors)
        self.register_buffer("scales", blocks.scales)

    def start(self, weight: Tensor, blocks: Blocks[Tensor]) -> Tensor:
        """Return the values nearest to a weight's that are rounded to the codes of its blocks."""
        rows = self.channels(weight).flatten(1)
        steps = self._steps(rows)
        middle, half = blocks.codes * steps, _WITHIN * steps.abs()
        return self._from_channels(rows.clamp(middle - half, middle + half), weight.shape)

    def blocks(self, weight: Tensor) -> Blocks[Tensor]:
        """Return a finite weight in four bits."""
        rows = self.channels(weight.detach()).flatten(1)
        codes = (rows / self._steps(rows)).round().clamp(LOWEST, HIGHEST)
        return Blocks(codes.to(torch.int8), self.factors, self.scales)

    @override
    def codes(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        blocks = self.blocks(weight)
        return blocks.wide(), blocks.scales

    def _steps(self, rows: Tensor) -> Tensor:
        """Return the step of each weight, as the rows are laid out."""
        steps = self.factors * self.scales.unsqueeze(-1)
        return steps.repeat_interleave(rows.shape[1] // steps.shape[1], dim=1)


def _from_phases(rows: Tensor, geometry: Geometry) -> Tensor:
    """Return the weight that `transposed_phases` took apart; `rows` are its channels, flattened."""
    inputs, outputs, kernel_size = geometry.shape
    stride, groups = geometry.stride, geometry.groups
    phase_size = -(-(kernel_size + geometry.output_padding) // stride)
    order = (stride, outputs) if groups == 1 else (outputs, stride)
    parts = rows.view(groups, *order, inputs // groups, phase_size)
    # Back to [groups, inputs / groups, outputs, phase, stride], the earliest input first.
    parts = parts.permute(0, 3, 2, 4, 1) if groups == 1 else parts.permute(0, 3, 1, 4, 2)
    padded = torch.flip(parts, (3,)).reshape(inputs, outputs, phase_size * stride)
    return padded[..., :kernel_size]


def disable_observer(root: nn.Module) -> None:
    """Freeze every range below a module at what was observed."""
    active = [
        (name, part)
        for name, part in root.named_modules()
        if isinstance(part, ActivationFakeQuantize) and part.observer_enabled[0]
    ]
    if idle := [name for name, part in active if not part.adopt()]:
        raise QuantizationError(
            f"{len(idle)} ranges were never observed, such as that of '{idle[0]}'; give inputs "
            "that reach them, or exclude their layers in the recipe"
        )
    for part in root.modules():
        if isinstance(part, FakeQuantize):
            part.observer_enabled.fill_(0)


def switch_fake_quant(root: nn.Module, *, on: bool) -> None:
    """Turn rounding in everything below a module on, or off: it then computes in FP32."""
    for part in root.modules():
        if isinstance(part, FakeQuantize):
            part.fake_quant_enabled.fill_(on)


@contextmanager
def observing(root: nn.Module) -> Iterator[None]:
    """Observe ranges below a module in the block, without rounding, and freeze them behind it."""
    switch_fake_quant(root, on=False)
    try:
        yield
        disable_observer(root)
    finally:
        switch_fake_quant(root, on=True)
