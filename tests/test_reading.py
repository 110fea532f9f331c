"""Files that a user names: whatever they are, one error and nothing that waits or fills memory."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tts_compress.artifact import Manifest, read_manifest
from tts_compress.config import read_table
from tts_compress.errors import ArtifactError, EvaluationError, ModelError, RecipeError
from tts_compress.evaluation import read_report
from tts_compress.models.files import read_json, read_yaml
from tts_compress.models.graph_file import read_graph
from tts_compress.reading import bounded_bytes, read_text, read_toml

_READERS: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "model.json": (read_json, ModelError),
    "model.yaml": (read_yaml, ModelError),
    "model.onnx": (read_graph, ModelError),
    "recipe.toml": (read_table, RecipeError),
    "report.json": (read_report, EvaluationError),
    "manifest.json": (lambda path: read_manifest(path.parent), ArtifactError),
}


@pytest.mark.parametrize("name", _READERS)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "sparse"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str, kind: str) -> None:
    """A pipe was waited for, and a link to a device read until memory was full."""
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 5 << 30)
    read, error = _READERS[name]
    # A report may be named by its folder.
    problem = "no regular file|Is a directory|there is no report|5,368,709,120 bytes"
    with pytest.raises(error, match=problem) as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "[" + ".".join(["a"] * 100_000) + "]",
        ".".join(['"a b"'] * 20_000) + " = 1",
        "a = " + "[" * 5_000,
        "a = " + "{a = " * 500 + "1" + "}" * 500,
        "a = " + "1" * 5_000,
    ],
    ids=["header", "key", "array", "table", "number"],
)
def test_deep_toml_is_refused_before_it_is_parsed(tmp_path: Path, content: str) -> None:
    """A header of 100,000 levels took minutes: the parser's time is quadratic in them."""
    path = tmp_path / "recipe.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"parts|levels deep|digits") as caught:
        read_table(path)
    assert len(str(caught.value)) < 500


def test_text_that_looks_deep_is_read(tmp_path: Path) -> None:
    """Prose, and brackets and dots in strings and comments, are no nesting."""
    path = tmp_path / "set.toml"
    texts = ["a.a" * 200, "[{" * 200, "One. " * 200]
    lines = "".join(f"  {text!r},\n" for text in texts)
    long = 'b = """\n' + "x.\\\n" * 300 + '"""\n'
    path.write_text(f"# {'[' * 500}\na = [\n{lines}]\n{long}c = [{'0.5, ' * 500}]\n", "utf-8")
    assert read_toml(path)["a"] == texts


def test_deep_json_is_refused() -> None:
    with pytest.raises(ArtifactError, match="nested more than 100 levels"):
        Manifest.from_json('{"a":' * 150 + "1" + "}" * 150)


def test_a_text_is_decoded_once_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("ü\r\nx\ry".encode())
    assert read_text(path) == "ü\nx\ny"
    with pytest.raises(ValueError, match="at most 3 are"):
        read_text(path, 3)


@pytest.mark.parametrize(
    "shape", [(1 << 62, 1 << 62), (-1,), (1.5,), (True,), ("a",), (1,) * 33, (1025,)]
)
def test_a_declared_size_is_bounded(shape: tuple[object, ...]) -> None:
    assert bounded_bytes((16, 16), 4, 1024) == 1024
    with pytest.raises(ValueError, match=r"an array of"):
        bounded_bytes(shape, 1, 1024)
