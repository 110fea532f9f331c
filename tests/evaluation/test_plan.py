"""Plans: what a claim needs before anything is evaluated."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.power.errors import read_word_errors
from benchmarks.power.simulate import Plan, share_found
from tts_compress.cli import main
from tts_compress.evaluation.plan import Spread, measure_spread, plan_evaluation, recognition_pace
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
    assert found["spread"] == asdict(read_word_errors().spread())


def test_plan_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--plan", "10"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "To find 10 points of word error rate in 80 % of evaluations" in printed
    assert "Suite en-quick suffices." in printed
    assert "recognition" not in printed


def test_what_cannot_be_planned_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    for points in ("0", "-1", "nan", "inf", "101"):
        assert "give 0.01 to 100" in refused("evaluate", f"--plan={points}")
    assert "--plan POINTS" in refused("evaluate", "demo")
    assert "there is no report" in refused("evaluate", "--plan", 1, "--output", tmp_path)


def test_too_few_transcripts_show_no_pace() -> None:
    assert recognition_pace(_with_recognition(6.0, 4)) == pytest.approx(1.5)
    assert recognition_pace(_with_recognition(2.0, 2)) is None


def test_a_run_on_this_machine_says_how_long(tmp_path: Path) -> None:
    """The spread and the speed are those of an earlier evaluation, whichever recognizer it had."""
    report = _with_recognition(8.0, 4)
    suite = report.suite.model_copy(update={"normalizer": "en-v2"})  # as Whisper's is
    report = report.model_copy(update={"suite": suite})
    (tmp_path / "report.json").write_text(report.to_json(), encoding="utf-8")
    found = plan_evaluation(1.0, tmp_path)
    (need,) = found.needs  # one seed does not show what three give
    assert need.recognition_s == pytest.approx(2.0 * need.texts * 4)
    assert found.source == "out/demo-int8 against demo on en-full, 1 seed"
    assert [offer.suite for offer in found.offers] == ["en-quick", "en-full"]


_FACTOR = 1.959964 + 0.841621
"""Standard errors between zero and a difference that is found with 80 % power."""


def test_spread_of_one_seed_by_hand() -> None:
    """Four texts of ten words, one error more or fewer: deviations of a tenth."""
    found = measure_spread(np.array([[1], [-1], [1], [-1]]), np.full(4, 10), np.array([0, 2, 0, 2]))
    assert found.text == pytest.approx(math.sqrt(4 * 0.1**2 / 3))
    assert found.seed == 0.0
    assert found.cluster == pytest.approx(2 / 10)  # errors come in twos


def test_a_difference_in_proportion_to_words_is_no_spread() -> None:
    found = measure_spread(np.array([[1], [2], [3]]), np.array([5, 10, 15]), np.zeros(3, np.int64))
    assert found.text == pytest.approx(0.0, abs=1e-9)
    assert found.cluster == 1 / 10  # a reference without errors says nothing of how they come


def test_spread_of_texts_and_of_seeds_are_told_apart() -> None:
    """Sixteen seeds of many texts, with both spreads known."""
    random = np.random.default_rng(4)
    by_text, by_seed = random.normal(0, 30, (2000, 1)), random.normal(0, 60, (2000, 16))
    found = measure_spread(
        np.round(by_text + by_seed).astype(np.int64), np.full(2000, 1000), np.ones(3, np.int64)
    )
    assert found.text == pytest.approx(0.03, rel=0.05)
    assert found.seed == pytest.approx(0.06, rel=0.05)


def test_texts_that_a_claim_needs_by_hand() -> None:
    spread = Spread(text=0.0, seed=0.06, cluster=0.0)
    needed = spread.texts_for(0.005, 1)
    assert needed == math.ceil((_FACTOR * 0.06 / 0.005) ** 2) == 1131
    assert spread.texts_for(0.005, 3) == 377
    assert spread.detectable(1131, 1) == pytest.approx(0.005, rel=1e-3)
    assert spread.seeds_for(0.005, 200) == 6


def test_damage_that_clusters_is_found_as_the_definition_says() -> None:
    """An independent root of both conditions."""
    from scipy.optimize import brentq

    def error(difference: float) -> float:
        return math.sqrt((0.02**2 + (0.06**2 + 0.3 * difference) / 3) / 150)

    least = brentq(lambda m: m - 1.959964 * error(m), 1e-6, 1.0)
    sought = brentq(lambda d: d - 0.841621 * error(d) - least, 1e-6, 1.0)
    spread = Spread(text=0.02, seed=0.06, cluster=0.3)
    assert spread.detectable(150, 3) == pytest.approx(sought, rel=1e-5)


def test_seeds_do_not_average_out_what_is_the_texts() -> None:
    spread = Spread(text=0.06, seed=0.03, cluster=0.0)
    assert spread.texts_for(0.005, 1_000_000) == 1131
    assert (spread.seeds_for(0.005, 1132) or 0) > 100
    assert spread.seeds_for(0.005, 1000) is None


@given(
    st.floats(0.0, 0.2),
    st.floats(0.01, 0.2),
    st.floats(0.0, 0.5),
    st.floats(0.002, 0.05),
    st.integers(1, 9),
)
def test_counts_suffice_and_one_less_does_not(
    text: float, seed: float, cluster: float, difference: float, seeds: int
) -> None:
    spread = Spread(text=text, seed=seed, cluster=cluster)
    texts = spread.texts_for(difference, seeds)
    assert spread.detectable(texts, seeds) <= difference * (1 + 1e-6)
    if texts > 2:
        assert spread.detectable(texts - 1, seeds) > difference * (1 - 1e-6)
    needed = spread.seeds_for(difference, texts)
    assert needed is not None
    assert needed <= seeds


def test_standard_error_is_that_of_resampling() -> None:
    """An independent oracle: scipy's paired bootstrap of the ratio."""
    from scipy.stats import bootstrap

    data = read_word_errors()
    differences, words = data.differences()[:, :1], np.array(data.words)
    spread = measure_spread(differences, words, np.zeros(1, np.int64))
    still = Spread(text=spread.text, seed=0.0, cluster=0.0)
    resampled = bootstrap(
        (differences[:, 0], words),
        lambda d, w, axis: d.sum(axis) / w.sum(axis),
        paired=True,
        method="percentile",
        rng=np.random.default_rng(2),
    )
    error = still.detectable(len(words), 1) / _FACTOR
    assert error == pytest.approx(float(resampled.standard_error), rel=0.05)


def test_the_approximation_agrees_with_simulation() -> None:
    """Damage that is found with 80 % power is found by 70 to 90 % of simulated intervals."""
    data = read_word_errors()
    difference = data.spread().detectable(50, 1)
    share = share_found(data, Plan(50, 1, 500), "clustered", difference)
    assert 0.7 <= share <= 0.9
