"""Four bits by each algorithm on a transformer's linear layers, as a table."""

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.command import command
from benchmarks.report import table
from tts_compress import EvaluationOptions, Recipe, compress, evaluate, find_recipe
from tts_compress.errors import MissingExtraError
from tts_compress.recipes.formats import Algorithm

_DIRECTIONS = 32
"""Inputs are mixtures of so many random vectors, and a little noise."""

_ROWS, _CALIBRATED, _JUDGED = 128, 8, 4

_NAMES = {
    Algorithm.RTN: "rounding to nearest",
    Algorithm.GPTQ: "GPTQ",
    Algorithm.INC_RTN: "rounding to nearest, Intel Neural Compressor",
    Algorithm.INC_GPTQ: "GPTQ, Intel Neural Compressor",
}


class Row(NamedTuple):
    """The result of one algorithm."""

    algorithm: Algorithm
    snr_db: float | None
    """On batches outside of the calibration; None where the algorithm is not installed."""

    seconds: float


def _recipe_by(algorithm: Algorithm) -> Recipe:
    shipped = find_recipe("module", "int4-gptq")
    rules = tuple(rule.model_copy(update={"algorithm": algorithm}) for rule in shipped.component)
    four = tuple(rule for rule in rules if rule.weights == "int4")
    return shipped.model_copy(update={"component": four})


def measure(width: int) -> Iterator[Row]:
    """Yield a row for each algorithm, on a block of a width that is a multiple of 64."""
    source = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    directions = torch.randn(_DIRECTIONS, width, generator=source) / _DIRECTIONS**0.5

    def batch() -> Tensor:
        mixed: Tensor = torch.randn(_ROWS, _DIRECTIONS, generator=source) @ directions
        return mixed + 0.1 * torch.randn(_ROWS, width, generator=source)

    seen, judged = ([batch() for _ in range(count)] for count in (_CALIBRATED, _JUDGED))
    once = EvaluationOptions(timing_runs=1)
    compress(nn.Linear(64, 64), "int8-weight-only")  # imports and allocations count for nobody
    for algorithm in _NAMES:
        recipe = _recipe_by(algorithm)
        observes = algorithm in (Algorithm.GPTQ, Algorithm.INC_GPTQ)
        start = perf_counter()
        try:
            calls = seen if observes else None
            small = compress(block, recipe.scheme, recipe=recipe, calibration=calls)
        except MissingExtraError:
            yield Row(algorithm, None, 0.0)
            continue
        seconds = perf_counter() - start
        (output,) = evaluate(block, small, batches=judged, options=once).outputs
        yield Row(algorithm, output.snr_db, seconds)


def markdown(rows: Iterable[Row]) -> list[str]:
    """Return the rows as a table."""
    cells = []
    for row in rows:
        values = ("not installed (extra `inc`)", "")
        if row.snr_db is not None:
            values = (f"{row.snr_db:.1f} dB", f"{row.seconds:.1f} s")
        cells.append((f"`{row.algorithm}`", _NAMES[row.algorithm], *values))
    return table(("algorithm", "", "signal-to-noise ratio", "time"), cells, "llll")


@command(
    "benchmarks.four_bits",
    lambda add: add("--width", type=int, default=768, help="inputs of the block (768)"),
)
def main(options: Namespace) -> None:
    """Compress a block of linear layers to four bits by each algorithm."""
    print("\n".join(markdown(measure(options.width))))


if __name__ == "__main__":
    sys.exit(main())
