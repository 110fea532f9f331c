"""Modules that round as integer layers will, and let gradients through.

Names and switches are those of `torch.ao.quantization`: a `FakeQuantize` has an observer, which
chooses a range while it is on, and rounds while its fake quantization is on. torchao has such
modules for linear layers only, and none with static ranges; convolutions are most of a vocoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tts_compress.errors import QuantizationError
from tts_compress.qat.rounding import (
    affine_codes,
    pass_through,
    round_affine,
    round_to_range,
    round_to_scale,
    with_gradient_of,
)

if TYPE_CHECKING:
    from tts_compress.numerics.histogram import Range
    from tts_compress.qat.observers import Observer
    from tts_compress.qat.weight_format import WeightFormat

__all__ = [
    "ActivationFakeQuantize",
    "DynamicFakeQuantize",
    "FakeQuantize",
    "WeightFakeQuantize",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
]


class FakeQuantize(nn.Module):
    """Rounds to codes and back, where it is switched on; the switches are part of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.observer_enabled: Tensor
        self.fake_quant_enabled: Tensor
        self.register_buffer("observer_enabled", torch.tensor([1], dtype=torch.uint8))
        self.register_buffer("fake_quant_enabled", torch.tensor([1], dtype=torch.uint8))


class ActivationFakeQuantize(FakeQuantize):
    """8 bits for a whole tensor, in a range that was observed, and may go on learning.

    Whether codes are signed changes which they are, but not what values they stand for.

    A learned range starts as the observed one. What is learned is the logarithm of the factor by
    which each end moved, because an optimizer's steps should be as large for a range of 0.01 as
    for one of 100.

    Args:
        observer: Chooses the range while it is on.
        learned: Whether the range is a parameter.
    """

    def __init__(self, observer: Observer, *, learned: bool = False) -> None:
        super().__init__()
        self.observer = observer
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", torch.tensor(0.0, dtype=torch.float64))
        self.register_buffer("high", torch.tensor(0.0, dtype=torch.float64))
        self.log_stretch = nn.Parameter(torch.zeros(2)) if learned else None

    def forward(self, values: Tensor) -> Tensor:
        """Return values, rounded or not, in their own type.

        Raises:
            QuantizationError: The observer is on and meets a value that is not finite.
        """
        if self.observer_enabled[0] and values.numel():
            self.observer.observe(values.detach())
            if self.fake_quant_enabled[0]:
                self.adopt()
        if not self.fake_quant_enabled[0]:
            return values
        low, high = self._ends()
        function = round_affine if self.log_stretch is None else round_to_range
        return function(values.float(), low, high).to(values.dtype)

    def adopt(self) -> bool:
        """Take over the observer's range; return whether it has one."""
        chosen = self.observer.range()
        if chosen is not None:
            self.set_limits(chosen)
        return chosen is not None

    def set_limits(self, limits: Range) -> None:
        """Take over a range; whatever was learned starts anew from it."""
        with torch.no_grad():
            self.low.fill_(min(limits[0], 0.0))
            self.high.fill_(max(limits[1], 0.0))
            if self.log_stretch is not None:
                self.log_stretch.zero_()

    def limits(self) -> Range:
        """Return the range that values are rounded in: exactly what the codes reach.

        So whoever computes scale and zero point from it anew gets the same, whichever precision
        he computes in.
        """
        with torch.no_grad():
            low, high = self._ends()
            step = float(high - low) / 255
            zero = int(affine_codes(low, high)[1])
        return -zero * step, (255 - zero) * step

    def _ends(self) -> tuple[Tensor, Tensor]:
        """Return the range, FP64 scalars; copies, because observing changes buffers in place."""
        low, high = self.low.clone(), self.high.clone()
        if self.log_stretch is None:
            return low, high
        factors = self.log_stretch.double().exp()
        return low * factors[0], high * factors[1]


class DynamicFakeQuantize(FakeQuantize):
    """8 bits in the range of the very tensor that is rounded; there is nothing to observe.

    Args:
        least_step: Codes are never closer to each other than this.
    """

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
            least = self.least_step * 255
            stretch = torch.where(span > 0, least / span, 1).clamp(min=1)
            low, high = low * stretch, high * stretch
        return round_affine(values.float(), low, high).to(values.dtype)


class WeightFakeQuantize(FakeQuantize):
    """A weight's codes, with scales that follow its peaks or are learned.

    Following scales are computed from the weight each time, by post-training quantization's own
    rounding: what is trained is what quantizing the trained weight gives. Learned scales start
    there, and go on by the gradients of "Learned Step Size Quantization"; what is learned is the
    logarithm of the factor by which each has moved. Nothing is observed.

    Args:
        form: How codes are made.
        weight: What it is going to round; learned scales start from it.
        learned: Whether scales are parameters.
    """

    def __init__(self, form: WeightFormat, weight: Tensor, *, learned: bool = False) -> None:
        super().__init__()
        self.form = form
        scales = form.round(weight.detach().float())[1].float() if learned else None
        self.first_scales: Tensor | None
        self.register_buffer("first_scales", scales)
        self.log_stretch = None if scales is None else nn.Parameter(torch.zeros_like(scales))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight, rounded or not.

        Raises:
            QuantizationError: A weight is not finite.
        """
        if not self.fake_quant_enabled[0]:
            return weight
        if self.log_stretch is None:
            with torch.no_grad():
                codes, scales = self.form.round(weight)
                rounded = self.form.weight(codes * _beside(scales.float(), codes), weight)
            return pass_through(weight, rounded)
        rows = self.form.rows(weight)
        per_scale = rows.shape[-1]
        scales = with_gradient_of((per_scale * self.form.codes[1]) ** -0.5, self._scales(weight))
        return self.form.weight(
            round_to_scale(rows, _beside(scales, rows), self.form.codes), weight
        )

    @torch.no_grad()
    def codes(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a compressed layer stores of a weight.

        Returns:
            int8 codes, four-bit ones not yet packed, and scales: FP32 `[channels]`, or of groups
            bfloat16 `[channels, groups]`.

        Raises:
            QuantizationError: A weight is not finite.
        """
        if self.log_stretch is None:
            codes, scales = self.form.round(weight)
        else:
            if not torch.isfinite(weight).all():
                raise QuantizationError("a weight is not finite; training went wrong")
            rows, scales = self.form.rows(weight), self._scales(weight)
            steps = rows / _beside(scales, rows)
            codes = steps.clamp(*self.form.codes).round().to(torch.int8)
            scales = scales if self.form.group is None else scales.to(torch.bfloat16)
        return self.form.stored(codes, weight), scales

    def _scales(self, weight: Tensor) -> Tensor:
        """Return the learned scales, FP32, as a file can hold them and kernels can multiply."""
        assert self.log_stretch is not None
        assert self.first_scales is not None
        scales = self.first_scales * self.log_stretch.exp()
        if self.form.group is None:
            least = self.form.least_scales(weight.detach())
            return scales if least is None else torch.maximum(scales, least)
        return pass_through(scales, scales.detach().to(torch.bfloat16).float())


def enable_observer(root: nn.Module) -> None:
    """Have every range below a module follow what is seen."""
    _switch(root, observer=True)


def disable_observer(root: nn.Module) -> None:
    """Freeze every range below a module at what was observed.

    Raises:
        QuantizationError: Some saw nothing; all stay on.
    """
    watching = [
        (name, part)
        for name, part in root.named_modules()
        if isinstance(part, ActivationFakeQuantize) and part.observer_enabled[0]
    ]
    if idle := [name for name, part in watching if not part.adopt()]:
        raise QuantizationError(
            f"{len(idle)} ranges were never observed, such as that of '{idle[0]}'; give inputs "
            "that reach them, or exclude their layers in the recipe"
        )
    _switch(root, observer=False)


def enable_fake_quant(root: nn.Module) -> None:
    """Have everything below a module rounded that is to be."""
    _switch(root, fake_quant=True)


def disable_fake_quant(root: nn.Module) -> None:
    """Have everything below a module computed in FP32."""
    _switch(root, fake_quant=False)


def _switch(
    root: nn.Module, *, observer: bool | None = None, fake_quant: bool | None = None
) -> None:
    for part in root.modules():
        if isinstance(part, FakeQuantize):
            if observer is not None:
                part.observer_enabled.fill_(observer)
            if fake_quant is not None:
                part.fake_quant_enabled.fill_(fake_quant)


def _beside(scales: Tensor, rows: Tensor) -> Tensor:
    """Return scales in a shape that broadcasts to the values they belong to."""
    return scales.unsqueeze(-1).expand_as(rows)
