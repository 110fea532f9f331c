"""Settings with ranges, and how a model's location states them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.errors import ModelError
from tts_compress.models.options import Options, split_location

_EXAMPLE = "steps=16&voice=low"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(Options):
    limits: ClassVar = {"steps": (1, 10), "speed": (0.5, 2), "most": (0, 9)}
    choices: ClassVar = {"voice": ("low", "high")}

    steps: int = 4
    speed: float = 1.0
    voice: str = "low"
    most: int | None = None


def test_options_stand_behind_a_question_mark() -> None:
    assert split_location("a/dir", _EXAMPLE) == ("a/dir", {})
    name, found = split_location("a/dir?steps=7&speed=-0.5&voice=high&note=", _EXAMPLE)
    assert name == "a/dir"
    assert found == {"steps": 7, "speed": -0.5, "voice": "high", "note": ""}
    assert isinstance(found["steps"], int)


@pytest.mark.parametrize("query", ["", "steps", "steps=1&", "&"])
def test_what_states_no_options_is_refused_with_an_example(query: str) -> None:
    with pytest.raises(ModelError, match=f"cannot read the options '{query}'.*{_EXAMPLE}"):
        split_location(f"dir?{query}", _EXAMPLE)


def test_a_folder_may_have_a_question_mark_in_its_name(tmp_path: Path) -> None:
    for name in ("really?", "what?steps=3"):
        folder = tmp_path / name
        folder.mkdir()
        assert split_location(str(folder), _EXAMPLE) == (str(folder), {})


def test_the_least_and_the_greatest_values_are_accepted() -> None:
    for steps, speed in ((1, 0.5), (10, 2)):
        assert _Options(steps=steps, speed=speed).speed == speed


def test_what_differs_from_the_defaults_is_stated() -> None:
    assert _Options().stated() == {}
    changed = _Options().changed({"steps": 7, "voice": "high"}, "the test")
    assert changed == _Options(steps=7, voice="high")
    assert changed.stated() == {"steps": 7, "voice": "high"}
    assert _Options(most=3).stated() == {"most": 3}, "none of its own is the model's"
    assert changed.changed({"steps": 4}, "the test").stated() == {"voice": "high"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pitch": 3}, "the test states 'pitch'; there are most, speed, steps, voice"),
        ({"steps": 0}, "steps is 0; give an integer from 1 to 10"),
        ({"steps": 11}, "steps is 11; give an integer from 1 to 10"),
        ({"steps": 2.5}, "steps is 2.5; give an integer"),
        ({"steps": True}, "steps is True; give an integer"),
        ({"steps": "²"}, "steps is '²'; give an integer"),
        ({"speed": float("nan")}, "speed is nan; give a number from 0.5 to 2"),
        ({"speed": float("inf")}, "speed is inf; give a number"),
        ({"speed": "fast"}, "speed is 'fast'; give a number"),
        ({"speed": None}, "speed is None; give a number"),
        ({"most": 2.5}, "most is 2.5; give an integer from 0 to 9"),
        ({"voice": "loud"}, "voice is 'loud'; accepted: low, high"),
        ({"voice": 1}, "voice is 1; accepted: low, high"),
    ],
)
def test_a_wrong_option_is_an_error(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        _Options().changed(wrong, "the test")
    assert message in str(caught.value)


@given(st.integers() | st.just(10**400))
def test_integers_of_any_size_are_accepted_or_refused(steps: int) -> None:
    """Some are too large to become floating-point numbers, or to be printed."""
    if 1 <= steps <= 10:
        assert _Options(steps=steps).steps == steps
        return
    for name in ("steps", "speed"):
        with pytest.raises(ModelError, match=f"{name} is") as caught:
            _Options().changed({name: steps}, "the test")
        assert len(str(caught.value)) < 100
