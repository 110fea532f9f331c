"""`tts-compress gate`: which files judge, what is printed, and the exit code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tts_compress.cli import main
from tts_compress.evaluation import read_gates

_SHIPPED = Path(__file__).parents[1] / "eval" / "reports" / "demo-int8.json"


def _limits(name: str) -> int:
    """Return the number of figures that a file of gates limits."""
    return sum(len(gate.expanded()) for gate in read_gates(name).gate)


@pytest.fixture(scope="module")
def shipped() -> str:
    """Return the shipped report of the demo voice, with two of its utterances."""
    document = json.loads(_SHIPPED.read_text(encoding="utf-8"))
    del document["utterances"][2:]
    return json.dumps(document)


@pytest.fixture
def report(tmp_path: Path, shipped: str) -> Callable[..., str]:
    """Write that report with other values; return its path."""

    def write(*, wer: float = 0.13, interval: tuple[float, float] = (1.5, 1.7)) -> str:
        document: dict[str, Any] = json.loads(shipped)
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
    assert (
        "FAIL  speed, times the reference's, lower end of its 95 % interval "
        "(latency.interval.0): 0.7; needs at least 1.05"
    ) in printed
    assert printed[-1] == "cost: 1 of 4 gates failed"


@pytest.mark.parametrize("first", ["default", "strict"])
def test_several_gate_files_are_all_asked(
    first: str, report: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One that fails fails the whole, whichever comes first."""
    both = ["--gates", first, "--gates", "cost"]
    assert main(["gate", report(), *both]) == 0
    printed = capsys.readouterr().out
    assert f"{first}: all {_limits(first)} gates passed; allowed: " in printed
    assert "cost: all 4 gates passed\n" in printed
    slow = report(interval=(0.7, 1.6))
    assert main(["gate", *both, slow]) == 1
    capsys.readouterr()
    assert main(["gate", slow, *both[2:], *both[:2], "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"]
    assert [row["gates"] for row in found["rows"]] == ["cost"] * 4 + [first] * _limits(first)


def test_summary_junit_and_annotations_are_written_whatever_the_verdict(
    report: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A runner has the summary's file already, with what other steps wrote."""
    summary, junit = tmp_path / "summary.md", tmp_path / "gates.xml"
    summary.write_text("# Before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    files = ["--summary", str(summary), "--junit", str(junit)]
    assert main(["gate", report(interval=(0.7, 1.6)), "--gates", "cost", *files, "--json"]) == 1
    printed = capsys.readouterr()
    assert not json.loads(printed.out)["passed"]
    assert printed.err == (
        "::error title=tts-compress gate cost::speed, times the reference's, lower end of "
        "its 95 %25 interval (latency.interval.0): 0.7; needs at least 1.05\n"
    )
    assert summary.read_text(encoding="utf-8").startswith("# Before\n## ")
    assert 'failures="1"' in junit.read_text(encoding="utf-8")
    assert main(["gate", report(), *files, "--no-annotations"]) == 0
    assert (
        summary.read_text(encoding="utf-8").count(f": all {_limits('default')} gates passed\n") == 1
    )
    assert 'failures="0"' in junit.read_text(encoding="utf-8")


def test_against_an_earlier_report(
    report: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gates `regression` come on top of those that were named."""
    path = report()
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    value = document["distortion"]["value"]
    document["distortion"] |= {"value": 0.01, "interval": [0.009, 0.011]}
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(document), encoding="utf-8")
    assert main(["gate", path, "--against", path]) == 0
    assert main(["gate", path, "--against", str(earlier)]) == 1
    assert (
        "FAIL  distortion, of what telephone coding adds (distortion.value): "
        f"{100 * value:.1f} %, before 1.0 %; interval of the change begins at"
    ) in capsys.readouterr().out
    assert main(["gate", path, "--against", str(earlier), "--gates", "regression"]) == 1
    assert "default" not in capsys.readouterr().out
    document["suite"]["seeds"] = [7]
    earlier.write_text(json.dumps(document), encoding="utf-8")
    assert main(["gate", path, "--against", str(earlier)]) == 2
    assert (
        "not comparable: seeds [7] in the earlier report, [0] in this one"
        in capsys.readouterr().err
    )


def test_a_summary_that_cannot_be_written_is_an_error(
    report: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gate", report(), "--summary", str(tmp_path)]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_two_points_of_words_are_a_gate_of_their_own(
    report: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit that articles on INT8 state; `default` alone allows ten."""
    assert main(["gate", str(_SHIPPED), "--gates", "default", "--gates", "words-2"]) == 0
    path = Path(report())
    document = json.loads(path.read_text(encoding="utf-8"))
    document["wer"]["interval"] = [-0.005, 0.021]
    path.write_text(json.dumps(document), encoding="utf-8")
    assert main(["gate", str(path), "--gates", "default"]) == 0
    capsys.readouterr()
    assert main(["gate", str(path), "--gates", "words-2"]) == 1
    assert "(wer.interval.1): +2.1 points; needs at most +2.0 points; " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("metric", "code", "message"),
    [
        ("latency.p50_ratoi", 2, "'p50_ratoi' in 'latency'; did you mean 'p50_ratio'?"),
        ("latncy.ratio", 2, "no 'latncy' in a report; did you mean 'latency'?"),
        ("damage.*.uterances", 2, "did you mean 'utterances'?"),
        ("another.value", 2, "take a name of report.json, or install the package"),
        ("dnsmos_overall.candidate", 1, "not measured; needs at least 1"),
        ("environment.processor.heat", 1, "not measured; needs at least 1"),
        ("wer", 1, "'wer' is not a number; name one of its parts, such as 'wer."),
        ("wer.interval", 1, "not a number; name one of its parts, such as 'wer.interval.0'"),
        ("suite.name", 1, "'suite.name' is 'en-full', not a number; name another metric"),
    ],
)
def test_a_metric_that_no_report_has_is_misspelled_not_unmeasured(
    metric: str,
    code: int,
    message: str,
    report: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "gates.toml"
    gate = f'metric = "{metric}"\nlimit = 1\ndirection = "at-least"\nkind = "absolute"\n'
    path.write_text(f'version = 1\nname = "g"\nsummary = "s"\n[[gate]]\n{gate}', encoding="utf-8")
    assert main(["gate", report(), "--gates", str(path)]) == code
    printed = capsys.readouterr()
    assert message in printed.out + printed.err
