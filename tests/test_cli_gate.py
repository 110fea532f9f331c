"""`tts-compress gate`: which files judge, what is printed, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

_SHIPPED = Path(__file__).parents[1] / "eval" / "reports" / "demo-int8.json"


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., str]:
    """Write the shipped report of the demo voice with other values; return its path."""

    def write(*, wer: float = 0.13, interval: tuple[float, float] = (1.5, 1.7)) -> str:
        document: dict[str, Any] = json.loads(_SHIPPED.read_text(encoding="utf-8"))
        document["wer"] |= {"reference": wer, "interval": [-0.01, 0.004]}
        document["latency"] |= {"ratio": 1.6, "interval": [*interval]}
        path = tmp_path / "report.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return str(path)

    return write


def test_a_busy_machine_fails_the_cost_and_not_the_voice(
    report: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """`default` alone is what a voice has to pass on every machine."""
    path = report(interval=(0.7, 1.6))
    assert main(["gate", path]) == 0
    assert "latency" not in capsys.readouterr().out
    assert main(["gate", path, "--gates", "cost"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert "FAIL  latency.interval.0: 0.7 ≥ 1.05" in printed
    assert printed[-1] == "cost: a gate failed"


@pytest.mark.parametrize("first", ["default", "strict"])
def test_several_gate_files_are_all_asked(
    first: str, report: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One that fails fails the whole, whichever comes first."""
    both = ["--gates", first, "--gates", "cost"]
    assert main(["gate", report(), *both]) == 0
    printed = capsys.readouterr().out
    assert f"{first}: all gates passed\n" in printed
    assert "cost: all gates passed\n" in printed
    slow = report(interval=(0.7, 1.6))
    assert main(["gate", *both, slow]) == 1
    capsys.readouterr()
    assert main(["gate", slow, *both[2:], *both[:2], "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"]
    assert [row["gates"] for row in found["rows"]] == ["cost"] * 2 + [first] * 16


@pytest.mark.parametrize("name", ["default", "strict"])
def test_a_reference_that_is_not_understood_fails_and_says_why(
    name: str, report: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Although the candidate is as good as it."""
    assert main(["gate", report(wer=0.62), "--gates", name]) == 1
    assert (
        "FAIL  wer.interval.1: nothing was judged: the recognizer mishears 62.0 % of the "
        "reference's own words, more than 50.0 %\n"
    ) in capsys.readouterr().out
    assert main(["gate", report(wer=0.62), "--gates", "cost"]) == 0


def test_the_shipped_report_passes_the_quality_gates() -> None:
    """This includes a report that an older version wrote."""
    assert main(["gate", str(_SHIPPED)]) == 0


def test_the_help_says_which_gates_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """The help uses the words of the documents."""
    with pytest.raises(SystemExit):
        main(["gate", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "quality (words, fidelity, durations, health, damage)",
        "`cost` judges size and speed",
    ):
        assert words in shown
