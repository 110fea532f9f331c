"""The manifest, and the hashes of an artifact."""

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.artifact import (
    MANIFEST_NAME,
    REPOSITORY,
    CalibrationRecord,
    LayerRecord,
    Manifest,
    Source,
    atomic_directory,
    check_replaceable,
    read_manifest,
    sha256_of,
    with_files,
    write_text_atomically,
)
from tts_compress.errors import ArtifactError

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
_sizes = st.integers(0, 2**40)
_manifests = st.builds(
    Manifest,
    family=st.text(max_size=8),
    scheme=st.text(max_size=8),
    source=st.builds(Source, spec=st.text(max_size=8), sha256=st.text(), size_bytes=_sizes),
    recipe=st.dictionaries(st.text(max_size=8), _json, max_size=3),
    layers=st.lists(
        st.builds(
            LayerRecord,
            module=st.text(max_size=8),
            operator=st.just("Conv"),
            weights=st.just("int8"),
            activations=st.just("static"),
            parameters=_sizes,
        ),
        max_size=3,
    ).map(tuple),
    counts=st.dictionaries(st.text(max_size=8), _sizes, max_size=3),
    calibration=st.none()
    | st.builds(
        CalibrationRecord,
        set=st.text(max_size=8),
        sha256=st.text(max_size=8),
        utterances=_sizes,
        observer=st.just("minmax"),
        seed=_sizes,
    ),
    seed=_sizes,
    environment=st.dictionaries(st.text(max_size=8), _json, max_size=3),
    files=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    size_bytes=_sizes,
)


@pytest.fixture
def manifest() -> Manifest:
    """A manifest with little content."""
    return Manifest(
        family="piper",
        scheme="int8",
        source=Source(spec="voice.onnx", sha256="0" * 64, size_bytes=4),
        recipe={},
        layers=(),
        counts={},
        calibration=None,
        seed=0,
        environment={},
    )


@pytest.fixture
def artifact(tmp_path: Path, manifest: Manifest) -> Path:
    """A saved artifact with a made-up model file."""
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / "voice.onnx").write_bytes(b"model")
    (folder / "voice.onnx.json").write_text("{}", encoding="utf-8")
    text = with_files(manifest, folder, "voice.onnx").to_json()
    (folder / MANIFEST_NAME).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.slow
@given(_manifests)
def test_manifest_survives_the_file(manifest: Manifest) -> None:
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    assert Manifest.from_json(text).to_json() == text


@pytest.mark.slow
@given(manifest=_manifests, data=st.data())
def test_any_wrong_value_is_an_artifact_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, manifest: Manifest, data: st.DataObject
) -> None:
    """Every key in turn may hold anything; nothing but our own error may come of it."""
    raw: dict[str, Any] = json.loads(manifest.to_json())
    raw[data.draw(st.sampled_from(sorted(raw)))] = data.draw(_json)
    folder = tmp_path_factory.mktemp("artifact")
    (folder / MANIFEST_NAME).write_text(json.dumps(raw), encoding="utf-8")
    with contextlib.suppress(ArtifactError):
        read_manifest(folder)


def test_newer_format_asks_for_an_upgrade(manifest: Manifest) -> None:
    with pytest.raises(ArtifactError, match=r"format version 2; .* upgrade"):
        Manifest.from_json(replace(manifest, format_version=2).to_json())


def test_artifact_is_read_with_hashes_and_size(artifact: Path) -> None:
    found = read_manifest(artifact)
    assert found.size_bytes == len(b"model")
    assert found.files == {
        "voice.onnx": sha256_of(artifact / "voice.onnx"),
        "voice.onnx.json": sha256_of(artifact / "voice.onnx.json"),
    }


def test_altered_and_missing_files_are_named_together(artifact: Path) -> None:
    (artifact / "voice.onnx").write_bytes(b"madel")
    (artifact / "voice.onnx.json").unlink()
    with pytest.raises(ArtifactError) as caught:
        read_manifest(artifact)
    assert "'voice.onnx' was altered" in str(caught.value)
    assert "'voice.onnx.json' is missing" in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "sub/../secret", "sub//file", "a/sub/file", ".", "..", "", "\0"],
)
def test_names_that_leave_the_artifact_are_refused(
    artifact: Path, manifest: Manifest, name: str
) -> None:
    (artifact.parent / "secret").write_text("s", encoding="utf-8")
    (artifact / "sub").mkdir()
    (artifact / "sub" / "file").write_text("s", encoding="utf-8")
    altered = replace(manifest, files={name: sha256_of(artifact.parent / "secret")})
    (artifact / MANIFEST_NAME).write_text(altered.to_json(), encoding="utf-8")
    with pytest.raises(ArtifactError, match="compress the model again"):
        read_manifest(artifact)


def test_a_file_in_a_folder_of_the_artifact_is_checked(artifact: Path, manifest: Manifest) -> None:
    file = artifact / "sub" / "file"
    file.parent.mkdir()
    file.write_text("s", encoding="utf-8")
    whole = with_files(manifest, artifact, "voice.onnx")
    assert whole.files["sub/file"] == sha256_of(file)
    (artifact / MANIFEST_NAME).write_text(whole.to_json(), encoding="utf-8")
    assert read_manifest(artifact).files == whole.files
    file.write_text("t", encoding="utf-8")
    with pytest.raises(ArtifactError, match="'sub/file' was altered"):
        read_manifest(artifact)


@pytest.mark.parametrize("content", [None, b"\xff", b"", b"{}"], ids=str)
def test_missing_or_broken_manifest_is_an_artifact_error(
    artifact: Path, content: bytes | None
) -> None:
    (artifact / MANIFEST_NAME).unlink()
    if content is not None:
        (artifact / MANIFEST_NAME).write_bytes(content)
    with pytest.raises(ArtifactError, match="manifest"):
        read_manifest(artifact)


def test_text_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_text_atomically(path, "one")
    write_text_atomically(path, "two")
    assert path.read_text(encoding="utf-8") == "two"
    assert list(tmp_path.iterdir()) == [path]


def test_text_that_cannot_be_written_is_an_artifact_error(tmp_path: Path) -> None:
    """Neither a missing folder nor a file where one should be ends in a traceback."""
    (tmp_path / "file").touch()
    for folder in ("missing", "file"):
        with pytest.raises(ArtifactError, match="cannot write"):
            write_text_atomically(tmp_path / folder / "report.json", "text")


_MARKER = "manifest.json"


def _make(target: Path, content: str = "new", *, force: bool = False) -> None:
    with atomic_directory(target, marker=_MARKER, force=force) as partial:
        manifest = {"format_version": 9, "files": {"a/b.onnx": ""}, "content": content}
        (partial / _MARKER).write_text(json.dumps(manifest), encoding="utf-8")
        (partial / "a").mkdir()
        (partial / "a" / "b.onnx").touch()


def _content(target: Path) -> str:
    return str(json.loads((target / _MARKER).read_text(encoding="utf-8"))["content"])


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


def test_a_mount_point_is_told_without_pathlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Path.is_mount` raises on Windows in Python 3.11, so `--force` replaced nothing there."""
    monkeypatch.setattr(Path, "is_mount", None)
    _make(tmp_path / "out", "old")
    _make(tmp_path / "out", force=True)
    assert _content(tmp_path / "out") == "new"


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


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a/thesis.tex", ""),
        ("README.md", "My notes."),
        (_MARKER, '{"name": "a web application", "manifest_version": 3}'),
        (_MARKER, '{"format_version": 1'),
    ],
)
def test_force_loses_no_file_that_is_not_ours(tmp_path: Path, name: str, content: str) -> None:
    """Whatever lay beside a file of that name went with it, without a word."""
    _make(tmp_path / "out", "old")
    (tmp_path / "out" / name).write_text(content, encoding="utf-8")
    told = rf"out' holds .*'{name}', which this program did not write; move it elsewhere"
    for _ in range(2):
        with pytest.raises(ArtifactError, match=told):
            _make(tmp_path / "out", force=True)
    assert (tmp_path / "out" / name).read_text(encoding="utf-8") == content


def test_a_card_of_ours_is_replaced(tmp_path: Path) -> None:
    _make(tmp_path / "out", "old")
    (tmp_path / "out" / ".DS_Store").touch()
    (tmp_path / "out" / "README.md").write_text(f"Made by {REPOSITORY}.", encoding="utf-8")
    _make(tmp_path / "out", force=True)
    assert _content(tmp_path / "out") == "new"


def test_a_link_to_a_directory_stays(tmp_path: Path) -> None:
    """A directory of its own took its place, and the one on the larger disk was not replaced."""
    _make(tmp_path / "disk" / "big", "old")
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "big")
    with pytest.raises(ArtifactError, match="--force"):
        _make(tmp_path / "out")
    _make(tmp_path / "out", force=True)
    assert (tmp_path / "out").is_symlink()
    assert _content(tmp_path / "disk" / "big") == "new"
    (tmp_path / "here").symlink_to(Path.cwd())
    with pytest.raises(ArtifactError, match="is the current directory"):
        check_replaceable(tmp_path / "here", _MARKER, force=True)


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


def test_killed_run_leaves_no_target_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    name = "out[1]*"  # no pattern
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


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("/proc/out", "cannot write '/proc/out': "),
        ("/proc/version/a/out", "'/proc/version' is not a directory"),
        ("/proc", "'/proc' is a mount point, which cannot be replaced; choose a directory in it"),
        (".", "'.' is the current directory, which cannot be replaced; choose a directory in it"),
        ("x" * 300, "File name too long"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    target: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`quantize` compressed for minutes before it told that it cannot write there."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match=re.escape(problem)):
        check_replaceable(Path(target), _MARKER, force=True)


def test_a_trial_of_an_output_leaves_nothing(tmp_path: Path) -> None:
    check_replaceable(tmp_path / "new" / "out", _MARKER, force=False)
    assert not list(tmp_path.iterdir())
