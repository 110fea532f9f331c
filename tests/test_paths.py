"""Finding shipped and own files."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.errors import RecipeError
from tts_compress.paths import data_file, data_names, demo_voice

_KINDS = ("calib/recipes", "calib/sets", "eval/suites", "eval/gates")


@pytest.mark.parametrize("kind", _KINDS)
def test_every_shipped_name_is_found(kind: str) -> None:
    for name in data_names(kind):
        assert data_file(kind, name).is_file()


def test_own_file_is_taken_as_it_is(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.touch()
    assert data_file("calib/sets", str(own)) == own


def test_unknown_name_lists_those_that_are_shipped() -> None:
    with pytest.raises(RecipeError, match=r"no sets named 'xx'; shipped: en") as caught:
        data_file("calib/sets", "xx")
    assert ".toml" in str(caught.value)


def test_missing_own_file_is_named() -> None:
    with pytest.raises(RecipeError, match=r"no file 'missing\.toml'"):
        data_file("calib/sets", "missing.toml")


@pytest.mark.parametrize("name", ["../recipes/piper-int8", "/etc/passwd", "..", "", "\0"])
def test_name_does_not_leave_its_folder(name: str) -> None:
    with pytest.raises(RecipeError):
        data_file("calib/sets", name)


@pytest.mark.parametrize("name", ["a" * 300, "a" * 300 + ".toml", "\0.toml"])
def test_name_that_no_file_can_have_is_a_recipe_error(name: str) -> None:
    with pytest.raises(RecipeError):
        data_file("calib/sets", name)


@given(st.text(max_size=40))
def test_any_name_is_a_file_or_a_recipe_error(name: str) -> None:
    with contextlib.suppress(RecipeError):
        assert data_file("calib/sets", name).is_file()


def test_demo_voice_is_inside_the_package() -> None:
    assert demo_voice().parts[-3:] == ("tts_compress", "voices", "demo.onnx")
    assert isinstance(demo_voice(), Path)
