"""Results on a file system: whole or not at all."""

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tts_compress.errors import ArtifactError, MissingExtraError
from tts_compress.sweep.results import open_results
from tts_compress.sweep.run import connect


@pytest.fixture(params=["path", "file", "memory"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a folder, by a path or by fsspec."""
    if request.param == "path":
        return str(tmp_path / "out")
    fsspec = pytest.importorskip("fsspec")
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()
        return "memory://sweep/out"
    return f"file://{tmp_path}/out"


def test_a_result_comes_back(output: str, tmp_path: Path) -> None:
    results = open_results(output)
    assert results.keys() == set()
    assert results.log({"a"}) == {}
    folder = tmp_path / "made" / "deep"
    folder.mkdir(parents=True)
    (folder / "x.bin").write_bytes(b"\0" * 1000)
    results.put("a", folder.parent)
    results.put("a", folder.parent)  # a second time, by another machine
    assert results.keys() == {"a"}
    assert results.has("a")
    assert not results.has("b")
    results.get("a", tmp_path / "back")
    assert (tmp_path / "back" / "deep" / "x.bin").read_bytes() == b"\0" * 1000
    results.note("a", {"seconds": 1.0})
    results.note("a", {"seconds": 2.0})
    assert [one["seconds"] for one in results.log({"a"})["a"]] == [1.0, 2.0]
    assert {name for name in results.files.names("") if "/." in f"/{name}"} == set(), "no leftovers"


def test_what_is_written_half_is_not_there(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = open_results(output)
    (tmp_path / "made").mkdir()

    def cut(*_: object) -> None:
        raise OSError("cut")

    moved = "mv" if output.startswith("memory") else "put_file"
    monkeypatch.setattr(type(results.files.system), moved, cut)
    with pytest.raises((OSError, ArtifactError), match="cut"):
        results.put("a", tmp_path / "made")
    assert results.keys() == set()
    assert not results.has("a")


def test_a_damaged_or_hostile_archive_is_refused(tmp_path: Path) -> None:
    results = open_results(str(tmp_path / "out"))
    path = tmp_path / "out" / "units" / "a.zip"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PK\3\4 cut short")
    with pytest.raises(ArtifactError, match=r"units/a\.zip' is damaged.*remove it"):
        results.get("a", tmp_path / "back")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../escaped", "x")
    results.get("a", tmp_path / "back")
    assert not (tmp_path.parent / "escaped").exists()
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("protocol", ["", "file://"])
def test_what_has_no_end_is_not_read(tmp_path: Path, protocol: str) -> None:
    """`units/a.zip -> /dev/zero` was copied until the disk was full."""
    if protocol:
        pytest.importorskip("fsspec")
    results = open_results(f"{protocol}{tmp_path}/out")
    path = tmp_path / "out" / "units" / "a.zip"
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/zero")
    with pytest.raises(ArtifactError, match=r"units/a\.zip' is damaged: it is no .*remove it"):
        results.get("a", tmp_path / "back")


def test_an_archive_unpacks_to_no_more_than_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = open_results(str(tmp_path / "out"))
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "x.bin").write_bytes(b"\0" * 1000)
    results.put("a", tmp_path / "made")
    usage = shutil.disk_usage(tmp_path)._replace(free=999)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ArtifactError, match="it unpacks to more than 999 bytes"):
        results.get("a", tmp_path / "back")
    assert not list((tmp_path / "back").iterdir())


def test_files_that_are_no_records_count_for_nothing_in_the_log(tmp_path: Path) -> None:
    """A file manager's `log/.DS_Store` was an internal error, and there was no page."""
    results = open_results(str(tmp_path / "out"))
    results.note("a", {"seconds": 1.0})
    log = tmp_path / "out" / "log"
    for name in (".DS_Store", "a/.1.json", "a/notes.txt", "a/deeper/x.json"):
        (log / name).parent.mkdir(exist_ok=True)
        (log / name).touch()
    (log / "a" / "cut.json").write_text('{"seconds"', encoding="utf-8")
    (log / "a" / "list.json").write_text("[]", encoding="utf-8")
    assert results.log({"a"}) == {"a": [{"seconds": 1.0}]}


def test_an_unknown_kind_of_url_is_an_error() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(ArtifactError, match="nowhere"):
        open_results("nowhere://x")


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    for output in ("s3://bucket/sweep", "out"):
        with pytest.raises(MissingExtraError, match=r"'fsspec'.*tts-compress\[sweep\]"):
            open_results(output)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"'ray'.*tts-compress\[ray\]"):
        connect(2)
