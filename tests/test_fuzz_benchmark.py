"""The job that reads mutated input: a short one, and that the same seed gives the same case."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fuzz import mutate
from benchmarks.fuzz.compare import DisagreementError, check_agreement
from benchmarks.fuzz.mutate import Kind
from benchmarks.fuzz.run import KINDS, fuzz, kind_of, run_case
from tts_compress.errors import QuantizationError

_QUICK = ("onnx", "toml", "manifest", "report", "npz", "checkpoint", "recording")
"""Kinds of which a case takes milliseconds; the others speak, load torch, or are processes."""

_COMPARED = ("opset", "layer", "contract", "suite", "unit", "storage")
"""Kinds whose results are run, or read, and compared with what they were made from."""


@pytest.mark.parametrize("kind", _QUICK)
@pytest.mark.filterwarnings("ignore")
def test_mutated_input_ends_well(tmp_path: Path, kind: str) -> None:
    """Anything but an error of ours is raised."""
    refused = 0
    for seed in range(12):
        folder = tmp_path / str(seed)
        folder.mkdir()
        refused += run_case(seed, kind, folder)
    assert 3 < refused <= 12


@pytest.mark.parametrize("kind", _COMPARED)
@pytest.mark.filterwarnings("ignore")
def test_results_agree_with_what_they_were_made_from(tmp_path: Path, kind: str) -> None:
    """Or the input is refused in words that blame nobody else."""
    pytest.importorskip({"layer": "transformers", "storage": "optuna"}.get(kind, "onnx"))
    for seed in range(2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        run_case(seed, kind, folder)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), [("locale", 13), ("stream", 4)])
def test_commands_end_well_whatever_the_shell(tmp_path: Path, kind: str, seed: int) -> None:
    """An output in ASCII, and all streams closed: both ended as internal errors."""
    run_case(seed, kind, tmp_path)


def test_a_result_is_judged_by_the_bits_of_its_scheme() -> None:
    signal = np.sin(np.arange(100, dtype=np.float32))
    noise = np.cos(np.arange(100, dtype=np.float32))
    check_agreement([signal], [signal], "fp16")
    check_agreement([signal], [signal + 0.01 * noise], "int8")
    wrong = [
        (signal + 0.01 * noise, "fp16", "fp16: 40.0 dB, at least 48.2"),
        (signal + 0.1 * noise, "int8", "20.0 dB, at least 24.1"),
        (np.where(noise > 0.9, np.inf, signal).astype(np.float32), "int4", "not finite where"),
        (signal.astype(np.float64), "int8", r"float64 \[100\] in place of float32"),
        (signal[:50], "int8", r"\[50\] in place of float32 \[100\]"),
    ]
    for found, scheme, message in wrong:
        with pytest.raises(DisagreementError, match=message):
            check_agreement([signal], [found], scheme)
    with pytest.raises(DisagreementError, match="0 outputs, not 1"):
        check_agreement([signal], [], "int8")


def test_what_the_original_magnifies_is_explained_so_far_and_no_farther() -> None:
    """A norm of what hardly varied turned the rounding of bfloat16 into 26 dB."""
    before, after = [np.ones(4)], [np.array([1.0, 1.0, 1.0, 1.2])]
    check_agreement(before, after, "bf16", lambda: 15.0)
    with pytest.raises(DisagreementError, match=r"20\.0 dB, at least 25\.0"):
        check_agreement(before, after, "bf16", lambda: 25.0)


def test_an_error_that_asks_for_a_report_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that the fault is the program's."""

    def fail(*_: object) -> Iterator[None]:
        yield
        raise QuantizationError("two counts differ; please report this voice")

    kind = Kind(1, fail)
    monkeypatch.setattr("benchmarks.fuzz.run.KINDS", {"broken": kind})
    with pytest.raises(QuantizationError, match="please report"):
        run_case(0, "broken", tmp_path)


def test_a_seed_is_a_case(tmp_path: Path) -> None:
    assert {kind_of(seed) for seed in range(2_000)} == set(KINDS)
    written = []
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        run_case(5, "report", folder)
        written.append((folder / "report.json").read_bytes())
    assert written[0] == written[1]


def test_a_case_does_not_depend_on_those_before() -> None:
    """Lists that were put into a document were changed in place, and met again in the next one."""
    before = repr(mutate._ODD)
    for seed in range(1_000):
        mutate.mutate_json({"a": {"b": [1, 2]}, "c": "d"}, random.Random(seed))  # noqa: S311
    assert repr(mutate._ODD) == before


@pytest.mark.slow
def test_cases_run_in_processes_of_their_own() -> None:
    outcome = fuzz(range(1_000, 1_030))
    assert outcome.cases.total() == 30
    assert not outcome.failures
    assert 0 < outcome.peak_bytes < 2e9
    unknown = fuzz([0], ["nothing"], jobs=1)
    assert [failure.problem.split(":")[0][:8] for failure in unknown.failures] == ["KeyError"]
