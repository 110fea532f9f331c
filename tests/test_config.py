"""Finding data files, and strict reading of TOML."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, field_validator

from tts_compress.artifact import Manifest, read_manifest
from tts_compress.config import (
    ConfigFile,
    data_file,
    data_names,
    demo_voice,
    parse_config,
    read_config,
    read_table,
)
from tts_compress.errors import ArtifactError, EvaluationError, ModelError, RecipeError
from tts_compress.evaluation import read_report
from tts_compress.models.files import read_json, read_yaml
from tts_compress.models.graph_file import read_graph
from tts_compress.reading import bounded_bytes, read_text, read_toml

_KINDS = ("calib/recipes", "calib/sets", "eval/suites", "eval/gates")


class _File(ConfigFile):
    name: str
    count: int = 1
    shares: tuple[float, ...] = ()


def _write(folder: Path, text: str | bytes) -> Path:
    path = folder / "file.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_valid_file_is_read(tmp_path: Path) -> None:
    path = _write(tmp_path, 'version = 1\nname = "a"\nshares = [0.5, 1.0]')
    assert read_config(path, _File) == _File(version=1, name="a", shares=(0.5, 1.0))


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    """Editors on Windows begin files with one."""
    assert read_config(_write(tmp_path, b'\xef\xbb\xbfversion = 1\nname = "a"'), _File).name == "a"
    assert read_json(_write(tmp_path, b"\xef\xbb\xbf[1]")) == [1]


def test_a_text_of_another_encoding_says_what_to_do(tmp_path: Path) -> None:
    path = _write(tmp_path, 'version = 1\nname = "a"'.encode("utf-16"))
    with pytest.raises(RecipeError, match=r"not in UTF-8 \(byte 0 is 0xff\); save it in UTF-8"):
        read_config(path, _File)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('name = "a"', "version"),
        ('version = 2\nname = "a"', "version"),
        ("version = 1", "name"),
        ('version = 1\nname = "a"\nnmae = "b"', "nmae"),
        ("version = 1\nname = 3", "name"),
        ('version = 1\nname = "a"\ncount = "3"', "count"),
        ('version = 1\nname = "a"\ncount = 1.5', "count"),
        ('version = 1\nname = "a"\nshares = 0.5', "shares"),
        # JSON, through which the file is checked, knows no dates.
        ("version = 1\nname = 2024-01-01", "date"),
    ],
)
def test_wrong_key_is_named(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem) as caught:
        read_config(_write(tmp_path, text), _File)
    assert "file.toml" in str(caught.value)


def test_all_wrong_keys_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"version.*name.*extra"):
        read_config(_write(tmp_path, "version = 9\nname = 1\nextra = true"), _File)


def test_missing_file_is_a_recipe_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot read"):
        read_config(tmp_path / "missing.toml", _File)


@pytest.mark.slow
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_a_file_or_a_recipe_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = _write(tmp_path_factory.mktemp("toml"), content)
    with pytest.raises(RecipeError):
        read_config(path, _File)


@pytest.mark.parametrize("kind", _KINDS)
def test_every_shipped_name_is_found(kind: str) -> None:
    for name in data_names(kind):
        assert data_file(kind, name).is_file()


def test_own_file_is_taken_as_it_is(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.touch()
    assert data_file("calib/sets", str(own)) == own


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("xx", r"no sets named 'xx'; shipped: de, en, es.*\.toml"),
        ("missing.toml", r"no file 'missing\.toml'"),
        *((name, "") for name in ("../recipes/piper", "/etc/passwd", "..", "", "\0")),
        *((name, "") for name in ("a" * 300, "a" * 300 + ".toml", "\0.toml")),
    ],
)
def test_name_of_no_file_is_refused(name: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        data_file("calib/sets", name)
    assert re.search(message, str(caught.value))


def test_demo_voice_is_inside_the_package() -> None:
    assert demo_voice().parts[-3:] == ("tts_compress", "voices", "demo.onnx")
    assert isinstance(demo_voice(), Path)


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


def test_many_problems_are_counted_rather_than_listed() -> None:
    class Numbers(ConfigFile):
        numbers: dict[str, int]

    table = {"version": 1, "numbers": dict.fromkeys("abcdefgh", "x")}
    with pytest.raises(RecipeError) as refused:
        parse_config(json.dumps(table), Numbers, "it")
    assert str(refused.value).count("valid integer") == 5
    assert str(refused.value).endswith("; and 3 more")


def test_a_list_of_wrong_items_is_not_called_short() -> None:
    class Lists(ConfigFile):
        items: Annotated[tuple[int, ...], Field(min_length=1)]

        @field_validator("items")
        @classmethod
        def _refuse(cls, _: tuple[int, ...]) -> tuple[int, ...]:
            raise ValueError("never right")

    for items, problem in {
        '["x"]': "items.0: Input should be a valid integer",
        "[]": "items: Tuple should have at least 1 item after validation, not 0",
        "[1]": "items: never right",
    }.items():
        with pytest.raises(RecipeError) as refused:
            parse_config(f'{{"version": 1, "items": {items}}}', Lists, "it")
        assert str(refused.value) == f"it is not a valid Lists: {problem}"
