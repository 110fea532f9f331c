"""Unfinished work lies in the user's cache until the evaluation is done."""

import os
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tts_compress.errors import ArtifactError
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.store import Store, cache_folder, open_store
from tts_compress.folders import make_directory


def _write(store: Store) -> list[Path]:
    """Write a WAV file and a transcript."""
    paths = [store.root / "disturbed" / "a.wav", store.analysis_path("ears", "a" * 64)]
    for path in paths:
        make_directory(path.parent)
        path.write_text("piece")
    return paths


def _interrupt(output: Path | None, options: EvaluationOptions) -> tuple[Store, list[Path]]:
    """Return the place of an interrupted evaluation, and its pieces."""
    with suppress(KeyboardInterrupt), open_store(output, options) as store:
        paths = _write(store)
        raise KeyboardInterrupt
    return store, paths


def test_it_is_in_the_folder_that_the_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder() == tmp_path / "cache" / "tts-compress"
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == tmp_path / ".cache" / "tts-compress"


def test_an_interrupted_run_finds_its_pieces_and_a_finished_one_leaves_transcripts(
    tmp_path: Path, fast_options: EvaluationOptions
) -> None:
    output = tmp_path / "out"
    store, (wav, transcript) = _interrupt(output, fast_options)
    with open_store(tmp_path / "other", fast_options) as other:
        assert other.root != store.root
        assert other.analyses == store.analyses
    with open_store(output, fast_options) as again:
        assert again == store
        assert wav.exists()
    assert not store.root.exists()
    assert transcript.exists()


def test_a_run_without_an_output_leaves_only_transcripts(fast_options: EvaluationOptions) -> None:
    _, (wav, transcript) = _interrupt(None, fast_options)
    assert not wav.exists()
    assert transcript.exists()


def test_a_folder_of_the_users_own_stays(tmp_path: Path, fast_options: EvaluationOptions) -> None:
    options = replace(fast_options, work=tmp_path / "mine")
    with ExitStack() as stack:
        store = stack.enter_context(open_store(tmp_path / "out", options))
        paths = _write(store)
        with pytest.raises(ArtifactError, match="another process is evaluating"):
            stack.enter_context(open_store(tmp_path / "other", options))
    assert all(path.is_relative_to(tmp_path / "mine") for path in paths)
    assert all(path.exists() for path in paths)
    assert not (tmp_path / "cache").exists()


def test_what_is_older_than_a_week_is_removed(
    tmp_path: Path, fast_options: EvaluationOptions
) -> None:
    _, old = _interrupt(tmp_path / "out", fast_options)
    for path, days in zip(old, (8, 6), strict=True):
        os.utime(path, (time.time() - days * 86_400,) * 2)
    plan = tmp_path / "cache" / "sweeps" / "a" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.touch()
    os.utime(plan, (0, 0))
    with open_store(tmp_path / "other", fast_options):
        assert [path.exists() for path in old] == [False, True]
        assert plan.exists(), "machines of a sweep may begin later"


def test_another_program_of_the_workers_shares_nothing(
    tmp_path: Path, fast_options: EvaluationOptions
) -> None:
    """Nor does another version of the code, which is in the same hash."""
    options = replace(fast_options, worker=("other",))
    with (
        open_store(tmp_path / "a", fast_options) as one,
        open_store(tmp_path / "b", options) as other,
        open_store(tmp_path / "a", options) as same_output,
    ):
        assert one.analyses != other.analyses
        assert one.root != same_output.root
    roots = []
    for each in (fast_options, options):
        with open_store(None, replace(each, work=tmp_path / "mine")) as kept:
            roots.append(kept.root)
    assert roots[0] != roots[1]


def test_a_cache_that_cannot_be_written_is_one_error(
    tmp_path: Path, fast_options: EvaluationOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with (
        pytest.raises(ArtifactError, match=r"--work or XDG_CACHE_HOME"),
        open_store(tmp_path / "out", fast_options),
    ):
        pass
