"""A directory that appears whole or not at all, whatever happens on the way."""

import errno
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tts_compress.artifact import atomic_directory, check_replaceable, write_text_atomically
from tts_compress.errors import ArtifactError

_MARKER = "manifest.json"


def _make(target: Path, content: str = "new", *, force: bool = False) -> None:
    with atomic_directory(target, marker=_MARKER, force=force) as partial:
        (partial / _MARKER).write_text(content, encoding="utf-8")


def _content(target: Path) -> str:
    return (target / _MARKER).read_text(encoding="utf-8")


def test_directory_and_its_parents_appear(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    _make(target)
    assert _content(target) == "new"
    assert list(target.parent.iterdir()) == [target]


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with atomic_directory(target, marker=_MARKER) as partial:
        assert not target.exists()
        assert partial.parent.parent == target.parent, "another file system takes no rename"


def test_error_inside_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), atomic_directory(tmp_path / "out", marker=_MARKER):
        _ = 1 / 0
    assert not list(tmp_path.iterdir())


def test_full_disk_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_directory(tmp_path / "out", marker=_MARKER) as partial:
            (partial / "half").write_text("half", encoding="utf-8")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ArtifactError, match=r"cannot write '.*out': No space left on device"):
        write()
    assert not list(tmp_path.iterdir())


def test_existing_directory_needs_force(tmp_path: Path) -> None:
    _make(tmp_path / "out", "old")
    with pytest.raises(ArtifactError, match="--force"):
        _make(tmp_path / "out")
    assert _content(tmp_path / "out") == "old"
    _make(tmp_path / "out", force=True)
    assert _content(tmp_path / "out") == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_empty_directory_needs_no_force(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    _make(tmp_path / "out")
    assert _content(tmp_path / "out") == "new"


def test_force_replaces_only_our_own(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(ArtifactError, match=r"no manifest\.json.*not ours"):
        _make(tmp_path / "out", force=True)
    assert (tmp_path / "out" / "thesis.tex").exists()


@pytest.mark.parametrize("kind", ["file", "broken link"])
def test_what_is_no_directory_is_never_replaced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out"
    target.touch() if kind == "file" else target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match="not a directory"):
        _make(target, force=True)
    assert os.path.lexists(target)


def test_output_below_a_file_is_an_artifact_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="cannot write"):
        _make(tmp_path / "file" / "out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_parent_is_an_artifact_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ArtifactError, match="Permission denied"):
        _make(tmp_path / "out")
    tmp_path.chmod(0o700)


def test_old_artifact_stays_when_the_last_step_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old directory is moved aside first; it has to come back if the new one cannot go in."""
    target = tmp_path / "out"
    _make(target, "old")
    replace = Path.replace

    def fail_on_the_new_one(self: Path, to: Path) -> Path:
        if Path(to) == target and not self.name.endswith("-old"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return replace(self, to)

    monkeypatch.setattr(Path, "replace", fail_on_the_new_one)
    with pytest.raises(ArtifactError, match="Input/output error"):
        _make(target, force=True)
    assert _content(target) == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("name", ["out", "out[1]", "*"])
def test_killed_run_leaves_no_target_and_the_next_one_cleans_up(tmp_path: Path, name: str) -> None:
    program = f"""
import os, signal
from pathlib import Path
from tts_compress.artifact import atomic_directory
with atomic_directory(Path({str(tmp_path / name)!r}), marker="m") as partial:
    (partial / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -9
    assert not (tmp_path / name).exists()
    assert len(list(tmp_path.iterdir())) == 1
    _make(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_work_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "out", marker=_MARKER) as partial:
        (partial / _MARKER).touch()
        _make(tmp_path / "other")
        assert (partial / _MARKER).exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "out"]


def test_of_two_writers_the_first_wins(tmp_path: Path) -> None:
    """The second one began before the first had ended, and must not replace what it made."""
    writer = ExitStack()
    partial = writer.enter_context(atomic_directory(tmp_path / "out", marker=_MARKER))
    (partial / "second").touch()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / _MARKER).touch()
    with pytest.raises(ArtifactError, match="exists; use --force"):
        writer.close()
    assert [p.name for p in (tmp_path / "out").iterdir()] == [_MARKER]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_file_that_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from tts_compress.artifact import atomic_file
with atomic_file(Path({str(tmp_path / "x.json")!r})) as partial:
    partial.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert not (tmp_path / "x.json").exists()
    write_text_atomically(tmp_path / "x.json", "whole")
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_devices_are_written_to_and_links_stay(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="No space left on device"):
        write_text_atomically(Path("/dev/full"), "text")
    assert Path("/dev/full").is_char_device()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for text in ("one", "two"):
        write_text_atomically(tmp_path / "link", text)
        assert (tmp_path / "file").read_text(encoding="utf-8") == text
    assert (tmp_path / "link").is_symlink()


def test_an_output_below_a_file_is_refused_before_the_work(tmp_path: Path) -> None:
    """`quantize` compressed for minutes before it told that it cannot write there."""
    (tmp_path / "file").write_text("no folder")
    for target in (tmp_path / "file" / "out", tmp_path / "file" / "a" / "out"):
        with pytest.raises(ArtifactError, match=r"cannot write .*file' is not a directory; choose"):
            check_replaceable(target, _MARKER, force=True)
    check_replaceable(tmp_path / "new" / "out", _MARKER, force=False)
