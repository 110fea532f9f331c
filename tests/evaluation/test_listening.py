"""Listening tests: what listeners of known ability show, the audio, and files that are wrong."""

import base64
import io
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from tts_compress.audio import Audio, write_float_wav
from tts_compress.cli import main
from tts_compress.errors import EvaluationError, TTSCompressWarning
from tts_compress.evaluation import Evaluation
from tts_compress.evaluation.listening import (
    chance,
    detectable_share,
    join_listeners,
    share_interval,
)
from tts_compress.evaluation.page_audio import add_hiss, at_level, make_test

Saved = Callable[..., Path]

_RUNS = 1000


def _listen(
    random: np.random.Generator, abilities: Sequence[float], trials: int
) -> list[tuple[int, int]]:
    """Return right answers and trials of listeners who hear a share of differences, else guess."""
    heard = random.random((len(abilities), trials)) < np.array(abilities)[:, None]
    right = heard | (random.random(heard.shape) < 0.5)
    return [(int(row.sum()), trials) for row in right]


@pytest.mark.parametrize(("ability", "listeners"), [(0.0, 1), (0.6, 3), (1.0, 10)])
def test_the_interval_covers_what_listeners_of_known_ability_do(
    ability: float, listeners: int
) -> None:
    random = np.random.default_rng(7)
    truth, covered = (1 + ability) / 2, 0
    for _ in range(_RUNS):
        low, high = share_interval(_listen(random, [ability] * listeners, 20))
        covered += low <= truth <= high
    assert covered >= 0.94 * _RUNS


def test_listeners_who_differ_widen_the_interval_as_they_should() -> None:
    """Each of ten hears 60 % or nothing, by chance; trials taken as independent cover 75 %."""
    random = np.random.default_rng(8)
    covered = naive = 0
    for _ in range(_RUNS):
        counts = _listen(random, random.choice([0.0, 0.6], 10).tolist(), 20)
        low, high = share_interval(counts)
        covered += low <= 0.65 <= high
        low, high = share_interval([(sum(right for right, _ in counts), 200)])
        naive += low <= 0.65 <= high
    assert covered >= 0.94 * _RUNS
    assert naive < 0.8 * _RUNS


def test_false_alarms_are_at_most_the_level_and_power_is_as_told() -> None:
    random, trials = np.random.default_rng(9), 60

    def alarms(ability: float) -> float:
        draws = (_listen(random, [ability] * 3, 20) for _ in range(_RUNS))
        return float(np.mean([chance(sum(r for r, _ in d), trials) <= 0.05 for d in draws]))

    assert 0.01 <= alarms(0.0) <= 0.065
    detectable = detectable_share(trials)
    assert detectable is not None
    assert alarms(detectable) == pytest.approx(0.8, abs=0.04)


def test_one_listener_has_the_exact_interval_and_the_exact_chance() -> None:
    from scipy.stats import binom, binomtest

    for right in (0, 1, 11, 20):
        exact = binomtest(right, 20, 0.5, "two-sided").proportion_ci(0.95, "exact")
        assert share_interval([(right, 20)]) == pytest.approx((exact.low, exact.high))
        assert chance(right, 20) == pytest.approx(binom.sf(right - 1, 20, 0.5))


def test_so_few_trials_that_chance_alone_gets_all_right_find_nothing() -> None:
    assert detectable_share(4) is None
    found = detectable_share(5)
    assert found is not None
    assert ((1 + found) / 2) ** 5 == pytest.approx(0.8)


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Write what a listener saved; return the file."""

    def write(
        name: str, right: int = 10, *, trials: int = 20, caught: int = 4, **more: Any
    ) -> Path:
        answers = [
            {
                "index": number % max(trials, 1),
                "seed": 0,
                "catch": number >= trials,
                "reference": "ab"[number % 2],
                "x": "a",
                "answer": "a" if number < right or trials <= number < trials + caught else "b",
                "plays": {"a": 1, "b": 2, "x": 1},
                "seconds": 4.5,
            }
            for number in range(trials + 4)
        ]
        document = {
            "format_version": 1,
            "test": "t1",
            "identical": 3,
            "listener": name,
            "session": len(list(tmp_path.iterdir())) + 1,
            "trials": answers,
        }
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps(document | more), encoding="utf-8")
        return path

    return write


def test_listeners_are_joined_and_who_missed_a_damaged_copy_does_not_count(saved: Saved) -> None:
    files = [saved("Ada", 10), saved("Ben", 11), saved("", 20, caught=3)]
    found = join_listeners(files)
    assert (found.right, found.trials) == (21, 40)
    assert found.discriminated == pytest.approx(0.05)
    assert [score.is_reliable for score in found.listeners] == [True, True, False]
    assert found.interval == share_interval([(10, 20), (11, 20)])
    share = f"{100 * (detectable_share(40) or math.nan):.0f} %"
    assert str(found).startswith("no difference heard: 21 of 40 right (")
    assert str(found).endswith(
        f"; one that is heard in {share} of trials would have been found with 80 % probability"
    )


def test_the_sentence_says_what_is_heard_or_that_nothing_is_shown(saved: Saved) -> None:
    heard = str(join_listeners([saved("Ada", 17)]))
    assert heard == (
        "a difference is heard: 17 of 20 right (62 to 97 %; 50 % by guessing), p = 0.0013; it is "
        "heard in 70 % of trials"
    )
    few = str(join_listeners([saved("Ben", 4, trials=4)]))
    assert few.startswith("nothing is shown: 4 of 4 right (")


def test_the_command_prints_json(saved: Saved, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["listening", str(saved("Ada", 17)), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["right"], printed["trials"], printed["identical"]) == (17, 20, 3)
    assert printed["listeners"][0] == {
        "name": "Ada",
        "right": 17,
        "trials": 20,
        "is_reliable": True,
    }


def test_each_wrong_file_is_one_error(saved: Saved, tmp_path: Path) -> None:
    good = saved("Ada")
    content = good.read_text(encoding="utf-8")
    again = tmp_path / "again"
    again.write_text(content.replace('"Ada"', '"Eve"'), encoding="utf-8")
    odd = tmp_path / "odd"
    odd.write_text(content.replace('"seconds"', '"minutes"', 1), encoding="utf-8")
    cut = tmp_path / "cut"
    cut.write_text(content[:200], encoding="utf-8")
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 1 << 30)
    wrong = {
        "of another listening test": [good, saved("Ben", test="t2")],
        "or other pairs": [good, saved("Cy", trials=19)],
        "are of the same listener": [good, saved(" ADA ")],
        "same listener; give one of them": [good, again],
        "give one of them": [good, good],
        "no listener heard each damaged copy": [saved("Di", caught=3)],
        "no answers count": [saved("Flo", trials=0)],
        "is not saved by a listening test: trials.0.seconds: Field required": [odd],
        "cannot read '.*cut'": [cut],
        "cannot read '.*large': it has 1,073,741,824 bytes": [large],
        "cannot read '.*none'": [tmp_path / "none"],
    }
    for message, files in wrong.items():
        with pytest.raises(EvaluationError, match=message):
            join_listeners(files)


def _tone(level: float, seconds: float = 1.0, pause: float = 0.0) -> Audio:
    times = np.arange(round(8000 * seconds)) / 8000
    tone = level * math.sqrt(2) * np.sin(2 * np.pi * 500 * times)
    samples = np.concatenate([tone, np.zeros(round(8000 * pause))])
    return Audio(samples=samples.astype(np.float32), sample_rate=8000)


def _pairs(folder: Path, count: int, seeds: int = 1) -> tuple[list[Any], dict[str, Path]]:
    """Return pairs of a soft and a loud tone, one longer than the other."""
    pairs, files = [], {}
    for index, seed in ((i, s) for i in range(count) for s in range(seeds)):
        audio, seconds = {}, 0.5 + 0.1 * ((7 * index + seed) % count)
        for role, level in (("reference", 0.02), ("candidate", 0.2)):
            audio[role] = f"{role}-{index}-{seed}"
            files[audio[role]] = folder / f"{audio[role]}.wav"
            write_float_wav(files[audio[role]], _tone(level, seconds))
        lengths = dict.fromkeys(audio, seconds)
        pairs.append(SimpleNamespace(index=index, seed=seed, audio=audio, seconds=lengths))
    return pairs, files


def _decode(sound: str) -> np.ndarray[Any, Any]:
    samples, _ = soundfile.read(io.BytesIO(base64.b64decode(sound)))
    return np.asarray(samples)


def test_a_test_has_twenty_pairs_of_one_level_and_four_damaged_copies(tmp_path: Path) -> None:
    pairs, files = _pairs(tmp_path, 25, seeds=2)
    pairs[0].audio["candidate"] = pairs[0].audio["reference"]
    found = make_test(("before", "after", "suite"), pairs, files)
    assert found is not None
    assert found.identical == 1
    assert [pair.catch for pair in found.pairs] == [False] * 20 + [True] * 4
    assert {pair.seed for pair in found.pairs} == {0}
    assert 0 not in {pair.index for pair in found.pairs}
    lengths = [len(_decode(pair.sounds[0])) for pair in found.pairs[:20]]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (8000 * 0.6, 8000 * 2.9)
    for pair in found.pairs:
        before, after = map(_decode, pair.sounds)
        assert np.sqrt(np.mean(before**2)) == pytest.approx(0.05, rel=0.01)
        noise = np.sqrt(np.mean((after - before) ** 2))
        assert noise == pytest.approx(0.0125 if pair.catch else 0.0, abs=5e-4)
    assert make_test(("before", "after", "suite"), pairs, files) == found
    other = make_test(("before", "other", "suite"), pairs, files)
    assert other is not None
    assert other.test != found.test


@pytest.mark.slow
@pytest.mark.usefixtures("untimed")
def test_an_evaluation_writes_the_page_of_what_was_spoken(
    evaluated: Callable[..., Evaluation], tmp_path: Path
) -> None:
    """The softer of both voices is as loud as the other."""
    found = evaluated(tmp_path / "out", options={"listening_test": True}, gain=0.5)
    assert found.listening is not None
    assert (len(found.listening.pairs), found.listening.identical) == (10, 0)
    for pair in found.listening.pairs[:6]:
        before, after = map(_decode, pair.sounds)
        assert np.abs(before - after).max() < 0.005
        assert np.abs(before).max() > 0.05
    page = (tmp_path / "out" / "listening-test.html").read_text(encoding="utf-8")
    assert f"Listening test {found.listening.test}" in page


def test_few_texts_are_heard_with_every_seed(tmp_path: Path) -> None:
    found = make_test(("a",), *_pairs(tmp_path, 3, seeds=2))
    assert found is not None
    assert sum(not pair.catch for pair in found.pairs) == 6


def test_where_nothing_can_be_compared_there_is_no_test(tmp_path: Path) -> None:
    pairs, files = _pairs(tmp_path, 3)
    pairs[0].audio["candidate"] = pairs[0].audio["reference"]
    pairs[1].seconds["candidate"] = 21.0
    pairs[2].seconds["reference"] = 0.0
    with pytest.warns(TTSCompressWarning, match="1 of 3 pairs are identical"):
        assert make_test(("a",), pairs, files) is None


def test_the_level_is_that_of_the_speech_and_not_of_pauses() -> None:
    for audio in (_tone(0.3), _tone(0.01, pause=3.0), _tone(0.3, seconds=0.1)):
        samples = at_level(audio).samples
        loud = samples[: 800 if len(samples) < 3200 else 4000]
        wanted = 0.05 if len(samples) > 3200 else 0.1  # a block of 0.4 s, a quarter of it sound
        assert np.sqrt(np.mean(loud**2)) == pytest.approx(wanted, rel=0.12)
    silent = at_level(_tone(0.0)).samples
    assert not silent.any()
    assert np.sqrt(np.mean(add_hiss(_tone(0.0)).samples ** 2)) == pytest.approx(0.0125, rel=0.05)
