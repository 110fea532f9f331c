"""Noise that two torch models share, whatever they compute in.

A seed does not pair two models: torch draws other values in bfloat16 than in FP32, and any draw
more or less moves all that follow. Here every draw comes from a generator of our own, in FP32 on
the processor, and is cast and moved to where it was asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from tts_compress.errors import ModelError, TTSCompressError

_MEANS = {"standard_normal": 0.0, "random": 0.5, "standard_exponential": 1.0}
"""Mean of each distribution that noise is drawn from, by numpy's name."""


@contextmanager
def paired_noise(seed: int | Sequence[int] | None) -> Iterator[None]:
    """Let what runs in the block draw noise that depends on the seed and the order of draws alone.

    Covers `torch.randn`, `rand`, their `_like` forms, `normal`, `bernoulli` and `multinomial`, and
    the methods `normal_`, `uniform_`, `exponential_`, `bernoulli` and `multinomial`; generators
    given to them are ignored.
    Only draws of the thread that entered the block are covered: torch keeps modes per thread.

    Args:
        seed: Chooses the noise; several numbers choose as one. None means no noise at all: normal
            noise is zero, others are their mean, and `bernoulli` and `multinomial` take what is
            most probable.
    """
    parts = seed if seed is None or isinstance(seed, Sequence) else [seed]
    if parts is not None and min(parts) < 0:
        raise TTSCompressError(f"seed {min(parts)} is negative; give 0 or a larger integer")
    with _PairedNoise(parts):
        yield


def with_noise_of_this_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that draws the noise of this thread, whichever thread calls it."""
    mode: Any = _get_current_function_mode()  # type: ignore[no-untyped-call]
    if not isinstance(mode, _PairedNoise):
        return function

    def run(*arguments: Any, **keywords: Any) -> Any:
        with mode:
            return function(*arguments, **keywords)

    return run


@contextmanager
def noise_by_step(module: nn.Module, part: int = 0) -> Iterator[None]:
    """Let each call of a module in the block begin noise that depends on its number alone.

    Two models that draw a different number of times in a step, or of steps in an earlier part,
    share the noise of the steps that follow.

    Args:
        module: Called once a step, by the thread that entered `paired_noise`.
        part: Number of the part of a text.
    """
    mode: Any = _get_current_function_mode()  # type: ignore[no-untyped-call]
    if not isinstance(mode, _PairedNoise):
        yield
        return
    steps = count()
    with module.register_forward_pre_hook(lambda *_: mode.restart(part, next(steps))):
        yield


class _PairedNoise(TorchFunctionMode):
    """Replaces torch's random functions by draws from one generator; passes everything else on."""

    def __init__(self, seeds: Sequence[int] | None) -> None:
        super().__init__()
        self._seeds = seeds
        self._generator = None if seeds is None else np.random.default_rng(seeds)
        normal, uniform = partial(self._draw, "standard_normal"), partial(self._draw, "random")

        def fill_normal(out: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
            return out.copy_(normal(out.shape) * std + mean)

        def fill_uniform(out: torch.Tensor, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
            return out.copy_(uniform(out.shape) * (high - low) + low)

        self._replacements: dict[Any, Callable[..., torch.Tensor]] = {
            torch.randn: partial(_create, normal),
            torch.rand: partial(_create, uniform),
            torch.randn_like: partial(_create_like, normal),
            torch.rand_like: partial(_create_like, uniform),
            torch.normal: self._normal,
            torch.bernoulli: self._bernoulli,
            torch.Tensor.bernoulli: self._bernoulli,
            torch.multinomial: self._multinomial,
            torch.Tensor.multinomial: self._multinomial,
            torch.Tensor.normal_: fill_normal,
            torch.Tensor.uniform_: fill_uniform,
            # Handed over whole, by keywords, before they call the methods.
            nn.init.normal_: lambda tensor, mean, std: fill_normal(tensor.detach(), mean, std),
            nn.init.uniform_: lambda tensor, a, b: fill_uniform(tensor.detach(), a, b),
            torch.Tensor.exponential_: lambda out, lambd=1.0: out.copy_(
                self._exponential(out.shape) / lambd
            ),
        }

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if func in _REFUSED:
            raise ModelError(
                f"the model draws randomness by '{func.__name__}', which cannot be paired; "
                "normal, uniform, exponential and multinomial draws can"
            )
        if func not in self._replacements:
            return func(*args, **keywords)
        keywords.pop("generator", None)
        return self._replacements[func](*args, **keywords)

    def restart(self, *numbers: int) -> None:
        """Draw what follows from a generator that the seed and these numbers choose."""
        if self._seeds is not None:
            self._generator = np.random.default_rng([*self._seeds, *numbers])

    def _draw(self, distribution: str, shape: Sequence[int]) -> torch.Tensor:
        """Return FP32 noise, or its mean where there is to be none."""
        if self._generator is None:
            return torch.full(tuple(shape), _MEANS[distribution], dtype=torch.float32, device="cpu")
        drawn = getattr(self._generator, distribution)(shape, np.float32)
        return torch.from_numpy(np.asarray(drawn))

    def _exponential(self, shape: Sequence[int]) -> torch.Tensor:
        # Quotients by it must stay finite.
        return self._draw("standard_exponential", shape).clamp_min(torch.finfo(torch.float32).tiny)

    def _normal(
        self, mean: Any = 0.0, std: Any = 1.0, size: Any = None, **options: Any
    ) -> torch.Tensor:
        """Replace `torch.normal`, whose mean and deviation may be tensors."""
        tensors = [value for value in (mean, std) if isinstance(value, torch.Tensor)]
        if not tensors:
            draw = partial(self._draw, "standard_normal")
            return _create(lambda shape: draw(shape) * std + mean, size, **options)
        shape = np.broadcast_shapes(*(tensor.shape for tensor in tensors))
        noise = self._draw("standard_normal", shape).to(tensors[0].device)
        return _finish((noise * std + mean).to(tensors[0].dtype), options)

    def _bernoulli(
        self, values: torch.Tensor, p: float | None = None, **options: Any
    ) -> torch.Tensor:
        """Draw ones with the probabilities `values`, or all with `p`; without noise the likelier.

        SpeechT5 draws dropout by it while it speaks.
        """
        threshold = 1 - self._draw("random", values.shape).to(values.device)  # in (0, 1]
        ones = threshold <= (values if p is None else p)
        return _finish(ones.to(values.dtype), options)

    def _multinomial(
        self, values: torch.Tensor, num_samples: int, replacement: bool = False, **options: Any
    ) -> torch.Tensor:
        """Draw indices with probabilities proportional to `values`, shape `[…, V]`.

        Each index waits an exponential time divided by its probability; the first to arrive is
        drawn. Among the ways to share noise between two distributions this changes the fewest draws
        within a factor of two, where inverting the cumulative sum lets one changed probability
        move every later index.
        """
        weights = values.double()
        total = weights.sum(dim=-1)
        if not (bool((weights >= 0).all()) and bool(((total > 0) & total.isfinite()).all())):
            raise ModelError(
                "the model's probabilities are negative, not finite, or all zero; "
                "its weights are damaged or were compressed too far"
            )
        if not replacement:
            race = weights / self._exponential(weights.shape).to(weights)
            return _finish(race.topk(num_samples, dim=-1).indices, options)
        shape = (*weights.shape[:-1], num_samples, weights.shape[-1])
        race = weights.unsqueeze(-2) / self._exponential(shape).to(weights)
        return _finish(race.argmax(dim=-1), options)


_REFUSED = frozenset(
    {
        torch.binomial,
        torch.poisson,
        torch.randint,
        torch.randint_like,
        torch.randperm,
        torch.Tensor.bernoulli_,
        torch.Tensor.cauchy_,
        torch.Tensor.geometric_,
        torch.Tensor.log_normal_,
        torch.Tensor.random_,
        torch.nn.functional.gumbel_softmax,
    }
)


def _create(
    draw: Callable[[Sequence[int]], torch.Tensor], *size: Any, **options: Any
) -> torch.Tensor:
    """Return noise for a function that takes a size, as separate numbers or as one sequence."""
    stated = options.pop("size", size)
    if len(stated) == 1 and isinstance(stated[0], Sequence):
        stated = stated[0]
    dtype = options.get("dtype") or torch.get_default_dtype()
    device = options.get("device") or torch.get_default_device()
    noise = draw([int(length) for length in stated])
    return _finish(noise.to(device=device, dtype=dtype), options)


def _create_like(
    draw: Callable[[Sequence[int]], torch.Tensor], like: torch.Tensor, **options: Any
) -> torch.Tensor:
    """Return noise for a function that takes its shape, dtype and device from a tensor."""
    options["dtype"] = options.get("dtype") or like.dtype
    options["device"] = options.get("device") or like.device
    return _create(draw, like.shape, **options)


def _finish(tensor: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """Do what the options that every such function has ask for."""
    out = options.get("out")
    if out is not None:
        filled: torch.Tensor = out.resize_(tensor.shape).copy_(tensor)
        return filled
    return tensor.requires_grad_(bool(options.get("requires_grad", False)))
