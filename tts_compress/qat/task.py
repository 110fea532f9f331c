"""The interface between models and the trainer: tasks, their examples, and losses.

Losses compare a student's outputs with its teacher's. Every loss is an FP32 scalar, zero for equal
outputs; gradients flow into the student's only. Outputs of different shapes, or empty ones, are a
`TTSCompressError`.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from types import MethodType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten

from tts_compress.errors import ModelError, TTSCompressError
from tts_compress.models.base import Objective
from tts_compress.models.stand_ins import MelSpectrogram

Outputs: TypeAlias = tuple[Tensor, ...]

_HELD_OUT = 8
"""Number of texts or calls of which one is held out; at least one is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """One training example.

    Examples of equal shapes are joined along the first axis of their tensors, the batch, where that
    axis is equally long in all tensors of an example.
    """

    inputs: tuple[Tensor, ...]
    """Inputs of the student."""

    targets: Outputs
    """The teacher's outputs for them, in the order of the student's."""

    def each(self, change: Callable[[Tensor], Tensor]) -> "Example":
        """Return the example with every tensor changed."""
        inputs, targets = (tuple(map(change, part)) for part in (self.inputs, self.targets))
        return Example(inputs=inputs, targets=targets)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingTask:
    """A student, its examples, and its loss.

    Everything here is deterministic: a task that is made again, of the same parts and seed, has
    the same examples in the same order, so that a training that was interrupted can go on.
    """

    student: nn.Module
    """The module that is trained; it holds `FakeQuantize` modules and returns a tuple."""

    train: Sequence[Example]
    held_out: Sequence[Example]
    """The examples that the student is judged on; none of them is trained on."""

    loss: Callable[[Outputs, Example], Mapping[str, Tensor]]
    """Returns the terms of the loss by name, each a scalar, for outputs of the student and the
    example, or several joined; their sum is what training lowers."""

    converted: Callable[[Any], Callable[..., Outputs]] | None = None
    """Returns, for the student with any values, a function that computes the artifact's outputs
    from a student's inputs. None where the student itself is judged."""


_MAX_ERROR = 1e-8
"""Largest error of a repeated output: power of its difference from the recorded one, over the
power of that. It is not zero because torch adds up in another order where noise is chosen, or in
inference mode; at 80 dB it is still far below the effect of rounding."""


def joined(examples: Sequence[Example]) -> Iterator[tuple[Example, int]]:
    """Yield batches of the examples whose shapes are equal, each with how many it holds."""
    groups: dict[object, list[Example]] = {}
    for number, example in enumerate(examples):
        tensors = (*example.inputs, *example.targets)
        key: object = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        sizes = {tensor.shape[0] if tensor.dim() else None for tensor in tensors}
        if None in sizes or len(sizes) > 1:
            key = number  # there is no batch axis to be joined along
        groups.setdefault(key, []).append(example)
    for group in groups.values():
        if len(group) == 1:
            yield group[0], 1
            continue
        inputs, targets = (
            tuple(map(torch.cat, zip(*tensors, strict=True)))
            for tensors in ([e.inputs for e in group], [e.targets for e in group])
        )
        yield Example(inputs=inputs, targets=targets), len(group)


@torch.no_grad()
def is_batched(teacher: nn.Module, examples: Sequence[Example]) -> bool:
    """Return True if a module returns for joined examples what it returns for each."""
    batch, size = next(((b, size) for b, size in joined(examples) if size > 1), (None, 1))
    if batch is None:
        return True
    pair = batch.each(lambda tensor: tensor[: len(tensor) * 2 // size])
    try:
        return all(map(is_repeated, teacher(*pair.inputs), pair.targets))
    except (AssertionError, RuntimeError, TypeError, ValueError, LookupError):
        return False  # it takes no such sizes


def is_repeated(again: Tensor, first: Tensor) -> bool:
    """Return True if an output is the one that was recorded, but for an order of addition."""
    return again.shape == first.shape and _relative_error(again, first) <= _MAX_ERROR


def _relative_error(again: Tensor, first: Tensor) -> float:
    """Return the power of the difference over that of the first."""
    if torch.equal(again, first):
        return 0.0
    # Scores of tokens that are ruled out are infinite on both sides.
    difference = torch.where(again == first, 0.0, again.double() - first.double())
    power = torch.where(first.isfinite(), first, 0.0).double().square().sum()
    return float(difference.square().sum() / power) if power > 0 else float("inf")


def held_out_indices(count: int) -> list[int]:
    """Return the indices of the texts or calls that a student is judged on, rising."""
    return list(range(_HELD_OUT - 1, count, _HELD_OUT)) or [count - 1]


def digest_tensors(tensors: Iterable[Tensor]) -> str:
    """Return a hash that equal tensors have in common."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        values = tensor.detach().cpu().contiguous()
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


_WINDOWS = (512, 1024, 2048)
_MEL_SECONDS = 1024 / 22_050
_SILENCE = 1e-6 / 16
"""Power, over the square of the window, 60 dB below a full-scale sine; what is below counts as
silence, as in the log-mel distance of evaluations. HiFi-GAN V2 in four bits has a waveform loss of
0.82 if magnitudes count down to 1e-5, of which 0.14 is left with this floor: the rest is silence.
"""

_MIN_DEVIATION = 1e-3
"""Floor of a prior's deviation, so that no difference gets an infinite weight."""


def objective_terms(
    objective: Objective,
    outputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    variances: Sequence[float],
    sample_rate: int | None = None,
) -> dict[str, Tensor]:
    """Return the terms of an objective's loss by name, each a scalar.

    Args:
        objective: Names the loss.
        outputs: Tensors of the student.
        targets: The same of the teacher.
        variances: Variance of each target, which squared differences are divided by, so that
            tensors of any magnitude weigh alike.
        sample_rate: Hz. Waveforms get a log-mel term where it is known.
    """
    pairs = list(zip(outputs, targets, strict=True))
    if objective.loss == "kl":
        return {"kl": _sum(kl_divergence(*pair) for pair in pairs)}
    if objective.loss == "waveform":
        terms = {"waveform": _sum(waveform_loss(*pair) for pair in pairs)}
        if sample_rate is not None:
            mel = (log_mel_loss(*pair, sample_rate=sample_rate) for pair in pairs)
            terms["log-mel"] = _sum(mel)
        return terms
    if objective.log_deviation is not None:
        return {"mse": _prior_distance(pairs, objective.log_deviation)}
    scaled = zip(pairs, variances, strict=True)
    return {"mse": _sum(mse(*pair) / variance for pair, variance in scaled)}


def repeatable(module: nn.Module, objective: Objective) -> Callable[..., Any]:
    """Return the method that repeats an objective's calls.

    Some systems put their methods into `torch.inference_mode`, which no gradient leaves; here
    methods are called without their decorators.
    """
    method: Any = module
    if objective.method != "forward":
        method = getattr(module, objective.method)
        undecorated = inspect.unwrap(method)
        if undecorated is not method:
            method = MethodType(undecorated, module)
    changed = dict(objective.repeated)
    return lambda *arguments, **keywords: method(*arguments, **keywords | changed)


def compared_outputs(
    objective: Objective, output: Any, keywords: Mapping[str, Any] | None = None
) -> list[Tensor]:
    """Return the tensors of an output that count, in order."""
    leaves, _ = tree_flatten(output)
    real = [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
    positions = objective.outputs or range(len(real))
    if not real or max(positions) >= len(real):
        raise ModelError(
            f"'{objective.module}.{objective.method}' returned {len(real)} floating-point "
            f"tensors and the objective compares {list(positions) or 'at least one'}"
        )
    if keywords is None or objective.steps_of is None:
        return [real[position] for position in positions]
    steps = keywords[objective.steps_of].shape[-1]
    return [real[position][..., -steps:, :] for position in positions]


def target_variances(examples: Sequence[Example]) -> list[float]:
    """Return the variance of each target over all examples; 1 where it is constant."""
    targets = zip(*(example.targets for example in examples), strict=True)
    values = (torch.cat([tensor.double().flatten() for tensor in tensors]) for tensors in targets)
    return [float(each.var(correction=0)) or 1.0 for each in values]


def kl_divergence(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return the mean Kullback-Leibler divergence of the student from the teacher, in nats.

    Args:
        student_logits: Scores of V tokens, shape `[…, V]`.
        teacher_logits: The same of the teacher. A token that it rules out, with a score of minus
            infinity, does not count.
    """
    _check_shapes(student_logits, teacher_logits)
    teacher = functional.log_softmax(teacher_logits.detach().float(), dim=-1)
    student = functional.log_softmax(student_logits.float(), dim=-1)
    terms = teacher.exp() * (teacher - student)
    return torch.where(teacher == -torch.inf, 0.0, terms).sum(dim=-1).mean()


def mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared difference."""
    _check_shapes(student, teacher)
    return (student.float() - teacher.detach().float()).square().mean()


def waveform_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean absolute difference of samples, plus that of their log spectra.

    Samples alone would give quiet sounds no weight; spectra alone would ignore the phase. The
    spectra's term is the mean over Hann windows of several lengths, each moved by a quarter.

    Args:
        student: Samples in [-1, 1], shape `[…, T]`, any T above 0.
        teacher: The same of the teacher.
    """
    _check_shapes(student, teacher)
    output, target = student.float(), teacher.detach().float()
    spectra = [(_log_spectrum(output, n) - _log_spectrum(target, n)).abs().mean() for n in _WINDOWS]
    return (output - target).abs().mean() + torch.stack(spectra).mean()


def log_mel_loss(student: Tensor, teacher: Tensor, *, sample_rate: int) -> Tensor:
    """Return the mean absolute difference of log mel spectra, of 80 bands.

    Mel bands follow the resolution of hearing, so rounding noise between the harmonics of a voice
    counts for as much as it is audible.

    Args:
        student: Samples in [-1, 1], shape `[…, T]`, any T above 0.
        teacher: The same of the teacher.
        sample_rate: Hz.
    """
    _check_shapes(student, teacher)
    window = 2 ** round(log2(_MEL_SECONDS * sample_rate))
    mel = MelSpectrogram(sample_rate, n_fft=window, hop_length=window // 4, n_mels=80, center=False)
    mel = mel.to(student.device)
    missing = max(window - student.shape[-1], 0)  # short outputs are padded, both alike
    output, target = (
        mel(functional.pad(samples, (0, missing))).clamp(min=_SILENCE * window**2).log() / 2
        for samples in (student.float(), teacher.detach().float())
    )
    difference: Tensor = (output - target).abs().mean()
    return difference


def _log_spectrum(samples: Tensor, window: int) -> Tensor:
    """Return log magnitudes, shape `[B, window / 2 + 1, frames]`."""
    spectrum = torch.stft(
        samples.reshape(-1, samples.shape[-1]),
        window,
        hop_length=window // 4,
        window=torch.hann_window(window, device=samples.device),
        pad_mode="constant",  # reflection needs more samples than short outputs have
        return_complex=True,
    )
    # From the power: the magnitude's gradient is not finite at zero.
    power = torch.view_as_real(spectrum).square().sum(dim=-1)
    return power.clamp(min=_SILENCE * window**2).log() / 2


def _prior_distance(pairs: Sequence[tuple[Tensor, Tensor]], deviation: int) -> Tensor:
    """Return the squared difference of a prior's moments, in units of its own deviation.

    Where the prior is wide its noise covers differences of the mean.

    Args:
        pairs: For each moment, the student's and the teacher's.
        deviation: Position of the log deviation, whose differences are relative already.
    """
    unit = pairs[deviation][1].exp().clamp_min(_MIN_DEVIATION)
    means = [pair for position, pair in enumerate(pairs) if position != deviation]
    terms = [mse(output / unit, target / unit) for output, target in means]
    return _sum([*terms, mse(*pairs[deviation])])


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum()


def _check_shapes(student: Tensor, teacher: Tensor) -> None:
    if student.shape != teacher.shape or not student.numel():
        raise TTSCompressError(
            f"outputs of shapes {tuple(student.shape)} and {tuple(teacher.shape)} cannot be "
            "compared; they must be equal and not empty"
        )
