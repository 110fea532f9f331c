"""Temporary folders, what killed processes left of them, and folders of one process at a time."""

import errno
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from tts_compress.errors import ArtifactError
from tts_compress.folders import exclusive_folder, temporary_folder


def test_a_temporary_folder_goes_with_its_block(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as first, temporary_folder(tmp_path) as second:
        (first / "x").touch()
        assert first.parent == second.parent == tmp_path
    assert not [*tmp_path.iterdir()]


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from tts_compress.folders import temporary_folder
with temporary_folder(Path({str(tmp_path)!r})) as folder:
    (folder / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "tts-compress-voices").mkdir()  # the user's
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert len([*tmp_path.iterdir()]) == 2
    with temporary_folder(tmp_path) as folder:
        assert {*tmp_path.iterdir()} == {folder, tmp_path / "tts-compress-voices"}


def test_threads_that_make_folders_take_none_from_each_other(tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                with temporary_folder(tmp_path) as folder:
                    (folder / "x").touch()
        except BaseException as error:
            problems.append(error)

    threads = [Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert not [*tmp_path.iterdir()]


def test_a_folder_has_one_user_at_a_time(tmp_path: Path) -> None:
    message = f"another process is training into '{tmp_path}'"
    with (
        exclusive_folder(tmp_path, "training"),
        pytest.raises(ArtifactError, match=message),
        exclusive_folder(tmp_path, "training"),
    ):
        pass
    with exclusive_folder(tmp_path, "training"):
        pass


def test_a_folder_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    for manager in (temporary_folder(tmp_path / "no"), exclusive_folder(tmp_path / "no", "x")):
        with pytest.raises(ArtifactError, match="No such file"), manager:
            pass


def test_a_file_system_without_locks_has_folders_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes there cannot tell whether the other one lives, so none removes the other's."""
    fcntl = pytest.importorskip("fcntl")

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with temporary_folder(tmp_path) as first, temporary_folder(tmp_path) as second:
        assert {*tmp_path.iterdir()} == {first, second}
    assert not [*tmp_path.iterdir()]
    with exclusive_folder(tmp_path, "training"), exclusive_folder(tmp_path, "training"):
        (tmp_path / "x").touch()
