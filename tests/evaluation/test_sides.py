"""Shares of an evaluation, one model at a time, in stores that are put together."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.measures import TIMED
from tts_compress.errors import EvaluationError
from tts_compress.evaluation import EvaluationOptions, Suite
from tts_compress.evaluation.pairs import Side, fill_store
from tts_compress.evaluation.process import KeptWorkers
from tts_compress.evaluation.run import evaluate
from tts_compress.evaluation.stages import read_timed, time_pair
from tts_compress.evaluation.store import Analyzer, Store
from tts_compress.evaluation.subject import open_subject

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

_RECOGNIZER = Analyzer(
    kind="recognizer", given="pocketsphinx", setting="en-us", description="tone reader 1"
)


@pytest.mark.usefixtures("untimed")
def test_shares_are_the_whole_evaluation(
    fake: ModuleType,
    fake_spec: Callable[..., str],
    small_suite: Suite,
    fast_options: EvaluationOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is spoken or recognized where all shares are in the store, and the values equal."""
    log, heard = tmp_path / "spoken", tmp_path / "heard"
    monkeypatch.setenv("FAKE_RECOGNIZER_LOG", str(heard))
    specs = fake_spec("reference", log=str(log)), fake_spec("candidate", log=str(log), skip=2)
    models = fake.load(specs[0]), fake.load(specs[1])
    subjects = [open_subject(model, tmp_path) for model in models]
    merged = tmp_path / "merged"
    monkeypatch.setattr(
        "tts_compress.evaluation.stages.time_models",
        lambda *_: (_timings(), _timings()),
    )
    with KeptWorkers() as kept:
        options = replace(fast_options, kept=kept)
        for texts in ((0, 2), (1,)):
            for role, subject in zip(("reference", "candidate"), subjects, strict=True):
                store = Store(tmp_path / f"{role}{texts[0]}")
                own: Any = role
                side = Side(role=own, model=subject, suite=small_suite, texts=texts)
                fill_store(side, _RECOGNIZER, {}, store, options)
                shutil.copytree(store.root, merged, dirs_exist_ok=True)
        pair = (subjects[0], subjects[1])
        time_pair(Store(merged), pair, ["a"], options)
        spoken, recognized = log.read_text(), heard.read_text()
        assert len(spoken.splitlines()) == 3 * 2 * 3, "two seeds, and others of the reference"
        options = replace(options, work=merged, timed_before=True)
        found = evaluate(*models, suite=small_suite, options=options)
    assert (log.read_text(), heard.read_text()) == (spoken, recognized)
    # From the same store, so that this one speaks nothing, either; other tests compare stores.
    whole = evaluate(*models, suite=small_suite, options=replace(fast_options, work=merged))
    assert found.model_dump(exclude=TIMED) == whole.model_dump(exclude=TIMED)
    assert found.latency.reference.p50_ms == pytest.approx(300.0), "the times are the earlier ones"


def test_times_that_were_not_taken_are_an_error(
    fake: ModuleType,
    fake_spec: Callable[..., str],
    fast_options: EvaluationOptions,
    tmp_path: Path,
) -> None:
    subject = open_subject(fake.load(fake_spec("same")), tmp_path)
    with pytest.raises(EvaluationError, match="was not timed against"):
        read_timed(Store(tmp_path), (subject, subject), fast_options)


class _Process:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_kept_processes_are_used_again_until_they_fail() -> None:
    made: list[Any] = []

    def start() -> Any:
        made.append(_Process())
        return made[-1]

    with KeptWorkers(most=1) as kept:
        with kept.borrow("a", start) as first, kept.borrow("a", start) as second:
            assert first is not second, "one user at a time"
        assert made[0].closed != made[1].closed, "one stays"
        with kept.borrow("a", start) as again:
            assert again in made[:2]
        with pytest.raises(ZeroDivisionError), kept.borrow("a", start) as broken:
            raise ZeroDivisionError
        assert vars(broken)["closed"]
        with kept.borrow("a", start) as fresh:
            assert fresh is made[2]
    assert all(one.closed for one in made)


def _timings() -> Any:
    from tts_compress.evaluation.stages import Timings

    return Timings(spent=((0.3,) * 2,) * 2, audio=((1.0,) * 2,) * 2)
