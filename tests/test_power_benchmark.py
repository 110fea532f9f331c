"""The proof of the interval: it notices an interval that is wrong."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.power.__main__ import main, simulate
from benchmarks.power.simulate import (
    Intervals,
    Plan,
    damage,
    false_alarms,
    other_seeds,
    rate_found,
    share_outside,
    sign_flips,
)
from tts_compress.evaluation.bootstrap import paired_intervals
from tts_compress.evaluation.plan import ModelErrors, WordErrors, read_word_errors


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
    shares = false_alarms(read_word_errors(), Plan(100, 1, 1500))
    assert all(share is not None and 0.025 <= share <= 0.075 for share in shares.values())


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_an_interval_of_the_wrong_width_is_caught(factor: float) -> None:
    (row,) = simulate(read_word_errors(), [50], [1], 100, intervals=_scaled(factor))
    assert not row.holds


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


@pytest.mark.slow
def test_the_report_is_the_same_each_time(tmp_path: Path) -> None:
    arguments = ["--texts", "50", "--seeds", "1", "--comparisons", "250", "--report"]
    assert main([*arguments, str(tmp_path / "a")]) == 0
    assert main([*arguments, str(tmp_path / "b")]) == 0
    for suffix in (".json", ".md"):
        first = (tmp_path / f"a{suffix}").read_bytes()
        assert first == (tmp_path / f"b{suffix}").read_bytes()
    (size,) = json.loads((tmp_path / "a.json").read_text())["sizes"]
    powers = list(size["power"]["clustered"].values())
    assert powers == sorted(powers)


def test_errors_that_cannot_be_read_are_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--errors", str(tmp_path / "none.json")]) == 2
    assert "cannot read" in capsys.readouterr().err
