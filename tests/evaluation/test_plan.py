"""Plans: what a claim needs before anything is evaluated."""

import json
from pathlib import Path

import pytest

from tts_compress.cli import main
from tts_compress.evaluation.plan import Spread, plan_evaluation, recognition_pace
from tts_compress.evaluation.result import Evaluation, StageTime, read_report


def _with_recognition(seconds: float, steps: int) -> Evaluation:
    """Return the shipped report with a time of recognition."""
    shipped = read_report(Path(__file__).parents[2] / "eval" / "reports" / "demo-int8.json")
    stages = {"recognize": StageTime(seconds=seconds, steps=steps)}
    return shipped.model_copy(update={"stages": stages})


def test_plan_by_the_shipped_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """Half a point needs many more texts than are shipped; ten do not."""
    assert main(["evaluate", "--plan", "0.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    spread = Spread(**found["spread"])
    for need in found["needs"]:
        assert need["texts"] == spread.texts_for(0.005, need["seeds"])
        assert need["texts"] > 200
        assert need["recognition_s"] is None
    assert found["suite"] is None
    # Suites of other languages are another matter.
    assert [offer["suite"] for offer in found["offers"]] == ["en-quick", "en-full"]
    assert plan_evaluation(10.0).suite == "en-quick"
    middle = plan_evaluation(100 * found["offers"][-1]["detectable"])
    assert middle.suite == "en-full"


def test_plan_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--plan", "10"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "To find 10 points of word error rate in 80 % of evaluations" in printed
    assert "Suite en-quick suffices." in printed
    assert "recognition" not in printed


@pytest.mark.parametrize("points", ["0", "-1", "nan", "inf", "101"])
def test_a_difference_out_of_range_is_refused(
    points: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", f"--plan={points}"]) == 2
    assert "give 0.01 to 100" in capsys.readouterr().err


def test_without_a_plan_models_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "demo"]) == 2
    assert "--plan POINTS" in capsys.readouterr().err


def test_an_output_without_a_report_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--plan", "1", "--output", str(tmp_path)]) == 2
    assert "there is no report" in capsys.readouterr().err


def test_too_few_transcripts_show_no_pace() -> None:
    assert recognition_pace(_with_recognition(6.0, 4)) == pytest.approx(1.5)
    assert recognition_pace(_with_recognition(2.0, 2)) is None


def test_a_run_on_this_machine_says_how_long(tmp_path: Path) -> None:
    """The spread and the speed are those of an earlier evaluation."""
    report = _with_recognition(8.0, 4)
    (tmp_path / "report.json").write_text(report.to_json(), encoding="utf-8")
    found = plan_evaluation(1.0, tmp_path)
    (need,) = found.needs  # one seed does not show what three give
    assert need.recognition_s == pytest.approx(2.0 * need.texts * 4)
    assert found.source == "out/demo-int8 against demo on en-full, 1 seed"
