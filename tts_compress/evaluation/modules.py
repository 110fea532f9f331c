"""Two torch modules on the same batches: their size, their speed, and how far outputs differ."""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tts_compress.artifact import write_text_atomically
from tts_compress.compression.modules import call_module, copied
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.formatting import bytes_of, milliseconds, times, times_interval
from tts_compress.evaluation.intervals import compare_times, take_turns
from tts_compress.evaluation.metric import Document, Record
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.result import REPORT_NAME
from tts_compress.folders import make_directory
from tts_compress.torch.devices import device_of, start_clock
from tts_compress.torch.layers.checkpoint import stored_bytes
from tts_compress.torch.layers.module_surgery import copy_with_state


class OutputError(Record):
    """The difference of one output from the reference's, over all batches."""

    name: str
    """Its place in what the module returns, such as `0` or `logits`; empty for a lone tensor."""

    snr_db: float | None
    """Power of the reference over that of the difference; None where nothing differs."""

    worst_batch: int
    """The batch with the lowest ratio, from 0."""

    worst_snr_db: float | None

    @property
    def relative_error(self) -> float:
        """Magnitude of the difference over that of the reference: 0.01 is 1 %."""
        return 0.0 if self.snr_db is None else 10 ** (-self.snr_db / 20)

    def __str__(self) -> str:
        """Return the line for people."""
        named = f"output {self.name!r}" if self.name else "output"
        if self.snr_db is None:
            return f"{named}: no difference"
        return (
            f"{named}: signal-to-noise ratio {self.snr_db:.1f} dB (relative error "
            f"{self.relative_error:.2g}), {self.worst_snr_db:.1f} dB in batch {self.worst_batch}, "
            "the worst"
        )


class ModuleEvaluation(Document):
    """A compressed torch module beside its original."""

    reference_bytes: int
    """Bytes of parameters and buffers, which memory and a file hold; without activations."""

    candidate_bytes: int
    reference_ms: float
    """Median time of a call."""

    candidate_ms: float
    speed_ratio: float
    """Times as fast as the reference: geometric mean over batches; calls took turns."""

    speed_interval: tuple[float, float] | None
    """Its 95 % interval over batches; None of fewer than three."""

    threads: int
    outputs: tuple[OutputError, ...]

    def __str__(self) -> str:
        """Return the lines for people."""
        smaller = times(self.reference_bytes / self.candidate_bytes, "smaller", "larger")
        faster = times(self.speed_ratio, "faster", "slower")
        interval = times_interval(self.speed_ratio, self.speed_interval)
        size = f"{bytes_of(self.reference_bytes)} → {bytes_of(self.candidate_bytes)}"
        call = f"{milliseconds(self.reference_ms)} → {milliseconds(self.candidate_ms)}"
        speed = f"{faster} (95 % interval {interval}), threads: {self.threads}"
        return "\n".join(
            (f"tensors {size}: {smaller}", f"a call {call}: {speed}", *map(str, self.outputs))
        )

    def write(self, directory: Path | str) -> Path:
        """Write `report.json` into a directory; return it.

        Raises:
            ArtifactError: The directory cannot be written.
        """
        make_directory(Path(directory))
        write_text_atomically(Path(directory) / REPORT_NAME, self.to_json())
        return Path(directory)


def evaluate_modules(
    reference: object,
    candidate: object,
    batches: Iterable[Any] | None,
    output: Path | str | None,
    options: EvaluationOptions,
) -> ModuleEvaluation:
    """Call two modules in turns with the same batches and the same noise, and compare.

    Args:
        reference: The module in FP32; like the other it is called in evaluation mode, as a copy.
        candidate: What `compress` made of it.
        batches: Tensors, tuples of arguments, or dictionaries of them.
        output: Folder for the report, if any.
        options: `threads`, and `timing_runs` of as many batches as `timing_texts`.

    Raises:
        EvaluationError: There are no batches, or the two do not return the same shapes, or finite
            values.
        RecipeError: A module cannot be called with a batch.
        ArtifactError: `output` cannot be written.
    """
    listed = [] if batches is None or isinstance(batches, str | Tensor) else list(batches)
    if not (isinstance(reference, nn.Module) and isinstance(candidate, nn.Module) and listed):
        raise EvaluationError(
            "a torch module speaks no texts: give the module, what compress made of it, and "
            "batches=[...] of its inputs, each a tensor, a tuple of arguments or a dictionary"
        )
    pair = [copy_with_state(module).eval() for module in (reference, candidate)]
    calls = list(enumerate(listed))
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        powers = [_powers(pair, *call) for call in calls]
        runs = [partial(_seconds, pair, call) for call in calls[: options.timing_texts]]
        turns = take_turns(runs, options.timing_runs)
    finally:
        torch.set_num_threads(threads)
    spent = np.median(turns, axis=0).T  # of each batch: a busy machine disturbs single calls
    ratio, interval = compare_times(*spent)
    before_ms, after_ms = 1000 * np.median(spent, axis=1)
    result = ModuleEvaluation(
        reference_bytes=stored_bytes(reference),
        candidate_bytes=stored_bytes(candidate),
        reference_ms=float(before_ms),
        candidate_ms=float(after_ms),
        speed_ratio=ratio,
        speed_interval=interval,
        threads=options.threads,
        outputs=tuple(_error(name, [each[name] for each in powers]) for name in powers[0]),
    )
    if output is not None:
        result.write(output)
    return result


def _seconds(pair: Iterable[nn.Module], call: tuple[int, Any]) -> list[float]:
    """Return the seconds that each module takes for a batch."""
    return [_called(module, *call)[0] for module in pair]


@torch.inference_mode()
def _called(module: nn.Module, index: int, batch: Any) -> tuple[float, Any]:
    """Return the seconds of a call, and what it returned."""
    inputs = copied(batch)
    with torch.random.fork_rng():
        torch.manual_seed(index)
        seconds = start_clock(device_of(module))
        output = call_module(module, inputs, index)
        return seconds(), output


def _floats(output: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of real or complex numbers in an output, with their places."""
    if isinstance(output, Tensor) and (output.is_floating_point() or output.is_complex()):
        yield name, output
    elif isinstance(output, Mapping | tuple | list):
        items = output.items() if isinstance(output, Mapping) else enumerate(output)
        for key, inner in items:
            yield from _floats(inner, f"{name}.{key}" if name else str(key))


def _powers(pair: Iterable[nn.Module], index: int, batch: Any) -> dict[str, tuple[float, float]]:
    """Return the power of each output of the reference, and that of its difference."""
    before, after = (dict(_floats(_called(module, index, batch)[1])) for module in pair)
    shapes = [{name: tuple(t.shape) for name, t in side.items()} for side in (before, after)]
    if shapes[0] != shapes[1] or not before:
        raise EvaluationError(
            f"with batch {index} the reference returns shapes {shapes[0]} of real numbers and the "
            f"candidate {shapes[1]}; give modules that return the same, and some, in tensors, "
            "tuples, lists or dictionaries"
        )
    powers = {}
    for name in before:
        exact, other = (side[name].to(torch.complex128) for side in (before, after))
        # Scores that are ruled out are infinite on both sides.
        difference = torch.where(exact == other, 0, other - exact).abs().square().sum()
        if not torch.isfinite(difference):
            raise EvaluationError(
                f"output {name!r}: with batch {index} a value is NaN, or infinite on one side only"
            )
        power = torch.where(exact.isfinite(), exact, 0).abs().square().sum()
        powers[name] = max(float(power), sys.float_info.min), float(difference)
    return powers


def _error(name: str, powers: list[tuple[float, float]]) -> OutputError:
    """Return the error of an output from its powers in each batch."""
    worst = max(range(len(powers)), key=lambda index: powers[index][1] / powers[index][0])
    whole, lowest = (
        10 * math.log10(power / noise) if noise else None
        for power, noise in (map(sum, zip(*powers, strict=True)), powers[worst])
    )
    return OutputError(name=name, snr_db=whole, worst_batch=worst, worst_snr_db=lowest)
