"""README and docs: figures of the demo voice are those of its shipped report."""

from pathlib import Path

import pytest

from tests.docs_blocks import ROOT
from tts_compress.evaluation import Evaluation, read_report
from tts_compress.evaluation.formatting import signed


@pytest.fixture(scope="module")
def report() -> Evaluation:
    return read_report(ROOT / "eval" / "reports" / "demo-int8.json")


def _points(share: float) -> str:
    return signed(100 * share, 1)


def _row(page: str, beginning: str) -> str:
    lines = Path(ROOT / page).read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in lines if line.startswith(beginning))
    return row


def test_the_rows_of_the_demo_voice_are_its_reports(report: Evaluation) -> None:
    """README said 2.62 MB when its own commands had long made 2.58."""
    before, after = (
        f"{n / 1e6:.2f}" for n in (report.size.reference_bytes, report.size.candidate_bytes)
    )
    low, high = report.wer.interval
    said = (
        f"{report.latency.ratio:.1f}×",
        f"{_points(report.wer.delta)} points",
        f"95 % interval {_points(low)} … {_points(high)}",
    )
    readme = _row("README.md", "| the embedded demo voice |")
    assert [text for text in (f"{before} → {after}", *said) if text not in readme] == []
    assert f"`{report.suite.name}`" in readme, "rates of two suites are two figures"
    assert f"| {before} |" in _row("docs/benchmarks.md", "| demo (embedded) | FP32 |")
    figures = _row("docs/benchmarks.md", f"| | `int8` | {after} |")
    assert [text for text in said if text not in figures] == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_sizes_beside_the_sounds_are_the_reports(page: str, report: Evaluation) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for size in (report.size.reference_bytes, report.size.candidate_bytes):
        assert f"{size / 1e6:.1f} MB" in text


def test_an_evaluation_prints_as_the_sentence_that_begins_its_report(report: Evaluation) -> None:
    """`print(result.wer.delta)` gave 0.0013947, where README speaks of points."""
    said = str(report)
    cost = f"{report.size.ratio:.1f}× smaller and {report.latency.ratio:.1f}× faster"
    assert said.startswith(f"The compressed model is {cost} (95 % interval")
    assert f"changed by {_points(report.wer.delta)} points" in said
