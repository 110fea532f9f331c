"""The job that reads mutated input: a short one, and that the same seed gives the same case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.fuzz.run import fuzz, kind_of, run_case
from benchmarks.fuzz.targets import KINDS

if TYPE_CHECKING:
    from pathlib import Path

_QUICK = ("onnx", "toml", "manifest", "report", "npz", "checkpoint", "recording")
"""Kinds of which a case takes milliseconds; the others speak, or load torch."""


@pytest.mark.parametrize("kind", _QUICK)
@pytest.mark.filterwarnings("ignore")
def test_mutated_input_ends_well(tmp_path: Path, kind: str) -> None:
    """Anything but an error of ours is raised."""
    refused = 0
    for seed in range(40):
        folder = tmp_path / str(seed)
        folder.mkdir()
        refused += run_case(seed, kind, folder)
    assert 10 < refused <= 40


def test_a_seed_is_a_case(tmp_path: Path) -> None:
    assert {kind_of(seed) for seed in range(200)} == set(KINDS)
    written = []
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        run_case(5, "report", folder)
        written.append((folder / "report.json").read_bytes())
    assert written[0] == written[1]


@pytest.mark.slow
def test_cases_run_in_processes_of_their_own() -> None:
    outcome = fuzz(range(1_000, 1_030))
    assert outcome.cases.total() == 30
    assert not outcome.failures
    assert 0 < outcome.peak_bytes < 2e9
    unknown = fuzz([0], ["nothing"], jobs=1)
    assert [failure.problem.split(":")[0][:8] for failure in unknown.failures] == ["KeyError"]
