"""Numbers that make no sense are refused, all at once."""

from typing import Any

import pytest

from tts_compress.errors import QuantizationError
from tts_compress.qat.options import TrainingOptions


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"steps": 0}, "steps is 0; give 1 or more"),
        ({"batch_size": -1}, "batch_size is -1; give 1 or more"),
        ({"clip": float("nan")}, "clip is nan; give 0 or more"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; give a number above 0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf; give a number above 0"),
        ({"averaging": 1.0}, r"averaging is 1\.0; give 0 or more, below 1"),
        ({"threads": 0}, "threads is 0; give 1 to 4096, or leave it out"),
        ({"loss": "l1"}, "loss is l1; give mse, kl or waveform"),
        ({"steps": 0, "patience": -2}, "steps is 0.*patience is -2"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_numbers_out_of_range_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(QuantizationError, match=problem):
        TrainingOptions(**changes)


def test_identity_is_all_that_changes_results() -> None:
    usual = TrainingOptions()
    assert TrainingOptions(threads=2, checkpoint_every=7).identity() == usual.identity()
    for changes in ({"steps": 7}, {"seed": 1}, {"learning_rate": 1e-5}, {"learned_ranges": False}):
        assert TrainingOptions(**changes).identity() != usual.identity()
