"""The proof of the interval: it notices an interval that is wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.power.__main__ import main
from benchmarks.power.errors import SHIPPED, ModelErrors, WordErrors, read_word_errors
from benchmarks.power.errors import main as write_errors
from benchmarks.power.rare import (
    LOSSES,
    MISSES,
    NOTHING,
    UNIFORM,
    Loss,
    compare,
    draw,
    misses,
    passing,
    rate_misses,
)
from benchmarks.power.simulate import (
    Intervals,
    Plan,
    damage,
    false_alarms,
    other_seeds,
    rate_found,
    share_outside,
    sign_flips,
    within_limits,
)
from benchmarks.sound.analysis import read_values
from tts_compress.evaluation.gates import Gate, Gates
from tts_compress.evaluation.intervals import paired_intervals


def _scaled(factor: float) -> Intervals:
    """Return intervals whose width is wrong by a factor."""

    def intervals(
        differences: npt.NDArray[np.int64], words: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        ends = paired_intervals(differences, words)
        middle = (differences.sum(1) / words.sum(1))[:, None]
        scaled: npt.NDArray[np.float64] = middle + factor * (ends - middle)
        return scaled

    return intervals


def _data(reference: list[list[int]], candidate: list[list[int]], words: list[int]) -> WordErrors:
    def model(errors: list[list[int]]) -> ModelErrors:
        rows = tuple(tuple(row) for row in errors)
        return ModelErrors(spec="x", sha256="0", seeds=tuple(range(len(rows[0]))), errors=rows)

    return WordErrors(
        suite="s",
        recognizer="r",
        normalizer="en-v1",
        words=tuple(words),
        reference=model(reference),
        candidate=model(candidate),
    )


def test_the_interval_raises_as_many_false_alarms_as_it_may() -> None:
    shares = false_alarms(read_word_errors(), Plan(100, 1, 800))
    assert all(share is not None and 0.025 <= share <= 0.075 for share in shares.values())


def test_few_texts_that_differ_raise_no_false_alarms() -> None:
    """Four of 24 that got worse are chance in one evaluation of eight."""
    data = _data([[0]] * 24, [[1]] * 4 + [[0]] * 20, [10] * 24)
    assert false_alarms(data, Plan(24, 1, 400))["sign flips"] == 0.0


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_an_interval_of_the_wrong_width_is_caught(factor: float) -> None:
    shares = false_alarms(read_word_errors(), Plan(50, 1, 400), _scaled(factor))
    assert not within_limits(share for share in shares.values() if share is not None)


@pytest.mark.slow
def test_false_alarms_agree_with_a_test_of_signs() -> None:
    """Twelve texts that differ by one error each: a direct count over all signs."""
    data = _data([[1]] * 12, [[2]] * 12, [10] * 12)
    signs = 2 * ((np.arange(2**12)[:, None] >> np.arange(12)) & 1) - 1
    above, below = share_outside(signs, np.full((2**12, 12), 10))
    drawn = false_alarms(data, Plan(12, 1, 2000))
    assert drawn["other seeds"] is None  # one seed
    assert drawn["sign flips"] == pytest.approx(above + below, abs=0.02)


def test_two_roles_never_share_a_seed() -> None:
    """Errors of four seeds are powers of ten: sums show which were taken."""
    data = _data([[1, 10, 100, 1000]] * 3, [[0]] * 3, [5, 6, 7])
    differences, words = other_seeds(data, Plan(2, 2, 200), np.random.default_rng(1))
    assert {*np.abs(differences).ravel().tolist()} == {1089, 909, 891}
    assert {*words.ravel().tolist()} == {10, 12, 14}
    with pytest.raises(ValueError, match="6 seeds"):
        other_seeds(data, Plan(2, 3, 1), np.random.default_rng(1))


def test_signs_have_no_direction_and_texts_are_not_repeated() -> None:
    data = _data([[0]] * 4, [[1], [2], [4], [8]], [3, 4, 5, 6])
    differences, _ = sign_flips(data, Plan(4, 1, 4000), np.random.default_rng(1))
    assert (np.abs(differences).sum(1) == 15).all()
    assert abs((differences > 0).mean() - 0.5) < 0.02


@pytest.mark.parametrize("rate", [0.005, 0.04])
def test_damage_has_the_stated_rate_and_comes_clustered(rate: float) -> None:
    data = read_word_errors()
    words = np.tile(data.words, (400, 1))
    random = np.random.default_rng(6)
    by_word, clustered = (
        damage(kind, rate, data, words, random) for kind in ("by word", "clustered")
    )
    for added in (by_word, clustered):
        assert added.sum() / words.sum() == pytest.approx(rate, rel=0.05)
    assert clustered.var() > 1.5 * by_word.var()


def test_the_rate_between_two_planted_ones() -> None:
    """On the normal scale 50 % lies in the middle of 30 and 70 %."""
    powers = {0.0: 0.025, 0.01: 0.3, 0.02: 0.7}
    assert rate_found(powers, 0.5) == pytest.approx(0.015)
    assert rate_found(powers, 0.3) == pytest.approx(0.01)
    assert rate_found(powers, 0.9) is None


@pytest.mark.parametrize("struck", ["utterances", "texts"])
def test_losses_have_the_stated_rate_and_keep_together(struck: Any) -> None:
    """Two seeds of each text, one error in ten words: a loss adds nine."""
    data = _data([[1, 1]] * 50, [[1, 1]] * 50, [10] * 50)
    differences, words = draw(data, Plan(50, 2, 400), Loss(struck, 0.1))
    assert {*words.ravel().tolist()} == {20}
    assert differences.sum() / words.sum() == pytest.approx(0.09, rel=0.05)
    whole = {"utterances": 0.01, "texts": 0.1}[struck]
    assert (differences == 18).mean() == pytest.approx(whole, rel=0.15)
    assert compare(data, Plan(50, 2, 10), Loss(struck, 0.1)).truth == pytest.approx(0.09)


@pytest.mark.slow
def test_bounds_hold_for_losses_that_intervals_miss() -> None:
    """On the 24 texts of `en-quick`; the interval's end is what it was compared with."""
    rows = {row["loss"]: row for row in misses(read_word_errors(), Plan(24, 3, 400))}
    demanded = [rows[loss.name] for loss in LOSSES]
    assert all(row["bound"] <= MISSES < row["above"] for row in demanded)
    assert rows["4 % of texts"]["above"] > 0.2
    assert rows["8 % of texts"]["bound"] > MISSES
    assert not rows["8 % of texts"]["demanded"]
    assert rows["none"]["bound"] == 0.0
    assert all(row["below"] <= 0.0375 for row in rows.values())


def test_gates_are_judged_on_what_was_drawn() -> None:
    """Limits beyond all draws pass all or nothing; others in between."""

    def gate(metric: str, limit: float, **more: Any) -> Gate:
        kind = {"kind": "absolute"} | more
        return Gate(metric=metric, limit=limit, direction="at-most", **kind)

    change: dict[str, Any] = {"kind": "change", "interval": "wer.interval"}
    gates = Gates(
        version=1,
        name="tried",
        summary="",
        gate=(
            gate("wer.bound", 1.0),
            gate("wer.bound", 0.08),
            gate("wer.delta", 0.0, **change),
            gate("distortion.interval.1", -9.0),
            gate("size.ratio", 1.0),
        ),
    )
    values = read_values(Path(__file__).parents[1] / "eval" / "reports" / "sound-values.json")
    rows = passing(read_word_errors(), values, Plan(24, 3, 300), [gates])
    assert [row["metric"].partition(".")[0] for row in rows] == ["wer", "wer", "wer", "distortion"]
    nothing, uniform = [row["nothing"] for row in rows], [row["uniform"] for row in rows]
    assert (nothing[0], uniform[0], nothing[3], uniform[3]) == (1.0, 1.0, 0.0, None)
    assert nothing[1] >= 0.97
    assert (uniform[1] or 1.0) <= 0.15
    assert nothing[2] >= 0.95 > (uniform[2] or 0.0)
    assert NOTHING.name == "none"
    assert UNIFORM.name == "5 % of words"


def test_bounds_of_rates_hold_but_for_texts_that_none_was_seen_of() -> None:
    row = rate_misses(200, 3, 0.04, 300)
    assert row["independent"] <= 0.08
    assert row["together"] <= 0.08
    # None of 200 texts at 1 % is seen in 13 % of evaluations.
    assert rate_misses(200, 3, 0.01, 300)["together"] == pytest.approx(0.134, abs=0.06)


@pytest.mark.slow
def test_the_report_is_the_same_each_time(tmp_path: Path) -> None:
    arguments = ["--texts", "50", "--seeds", "1", "--comparisons", "250", "--report"]
    assert main([*arguments, str(tmp_path / "a")]) == 0
    assert main([*arguments, str(tmp_path / "b")]) == 0
    for suffix in (".json", ".md"):
        first = (tmp_path / f"a{suffix}").read_bytes()
        assert first == (tmp_path / f"b{suffix}").read_bytes()
    document = json.loads((tmp_path / "a.json").read_text())
    (size,) = document["sizes"]
    powers = list(size["power"]["clustered"].values())
    assert powers == sorted(powers)
    assert all(row["bound"] <= 0.05 for row in document["misses"] if row["demanded"])


def test_errors_that_cannot_be_read_are_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, fewer = tmp_path / "errors.json", read_word_errors().model_dump(mode="json")
    fewer["candidate"]["errors"].pop()
    for content, problem in (
        (None, "cannot read"),
        ("{", "holds no word errors"),
        ('{"words": [3, 4]}', "reference: Field required"),
        (json.dumps(fewer), "are not 200 texts by"),
    ):
        if content is not None:
            path.write_text(content)
        assert main(["--errors", str(path)]) == 2
        assert problem in capsys.readouterr().err


def test_an_evaluation_has_the_errors_of_its_utterances(tmp_path: Path) -> None:
    path, report = tmp_path / "errors.json", SHIPPED.with_name("demo-int8.json")
    assert write_errors([str(report), "--errors", str(path)]) == 0
    found, document = read_word_errors(path), json.loads(report.read_text())
    totals = [sum(map(sum, side.errors)) for side in (found.reference, found.candidate)]
    counts = [document["wer"]["counts"][side] for side in ("reference", "candidate")]
    edits = ("substitutions", "insertions", "deletions")
    assert totals == [sum(count[edit] for edit in edits) for count in counts]
    assert sum(found.words) * len(found.candidate.seeds) == counts[0]["reference_tokens"]
