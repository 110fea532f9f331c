"""Strict reading of TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.config import ConfigFile, read_config
from tts_compress.errors import RecipeError

if TYPE_CHECKING:
    from pathlib import Path


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


def test_missing_file_and_folder_are_recipe_errors(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot read"):
        read_config(tmp_path / "missing.toml", _File)
    with pytest.raises(RecipeError, match="cannot read"):
        read_config(tmp_path, _File)


def test_deeply_nested_file_is_a_recipe_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"file\.toml"):
        read_config(_write(tmp_path, "version = " + "[" * 2000 + "]" * 2000), _File)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_a_file_or_a_recipe_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = _write(tmp_path_factory.mktemp("toml"), content)
    with pytest.raises(RecipeError):
        read_config(path, _File)
