"""Names of the schemes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.errors import SchemeError
from tts_compress.recipes.schemes import SCHEMES, find_scheme

_NAMES = [scheme.name for scheme in SCHEMES]


@pytest.mark.parametrize("name", _NAMES)
def test_scheme_is_found_by_its_name(name: str) -> None:
    assert find_scheme(name).name == name


@given(st.text().filter(lambda name: name not in _NAMES))
def test_unknown_scheme_is_refused_with_the_value_and_all_that_are_known(name: str) -> None:
    with pytest.raises(SchemeError) as caught:
        find_scheme(name)
    assert repr(name) in str(caught.value)
    assert all(known in str(caught.value) for known in _NAMES)


def test_names_and_summaries_are_unique() -> None:
    assert len(set(_NAMES)) == len(_NAMES)
    assert len({scheme.summary for scheme in SCHEMES}) == len(SCHEMES)
