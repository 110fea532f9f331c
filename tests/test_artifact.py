"""The manifest, and the hashes of an artifact."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.artifact import (
    MANIFEST_NAME,
    CalibrationRecord,
    LayerRecord,
    Manifest,
    Source,
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


@given(_manifests)
def test_manifest_survives_the_file(manifest: Manifest) -> None:
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    assert Manifest.from_json(text).to_json() == text


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


@given(st.one_of(_json.map(json.dumps), st.text(max_size=50)))
def test_any_text_that_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(ArtifactError):
        Manifest.from_json(text)


def test_deeply_nested_text_is_refused() -> None:
    with pytest.raises(ArtifactError):
        Manifest.from_json("[" * 5000 + "]" * 5000)


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
