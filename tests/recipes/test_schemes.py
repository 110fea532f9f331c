"""Names of the schemes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.errors import SchemeError
from tts_compress.recipes.formats import SCHEMES, find_scheme

_NAMES = [scheme.name for scheme in SCHEMES]


@pytest.mark.parametrize("name", _NAMES)
def test_scheme_is_found_by_its_name(name: str) -> None:
    assert find_scheme(name).name == name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("INT8", "int8"),
        ("int8_dynamic", "int8-dynamic"),
        ("Int8_Weight_Only", "int8-weight-only"),
        ("INT4", "int4-weight-only"),
        ("float16", "fp16"),
        ("half", "fp16"),
        ("FP16", "fp16"),
        ("bfloat16", "bf16"),
        ("float8", "fp8"),
        (" int8 ", "int8"),
    ],
)
def test_what_torch_and_others_call_a_scheme_is_understood(given: str, name: str) -> None:
    assert find_scheme(given).name == name


@pytest.mark.parametrize(
    ("given", "suggested"), [("int8-dynamc", "int8-dynamic"), ("int8_statik", "int8-static")]
)
def test_the_nearest_name_is_suggested(given: str, suggested: str) -> None:
    with pytest.raises(SchemeError, match=f"unknown scheme '{given}'; .*mean '{suggested}'"):
        find_scheme(given)


def _is_unknown(text: str) -> bool:
    plain = text.strip().lower().replace("_", "-")
    return plain not in {*_NAMES, "float16", "bfloat16", "float8", "half", "int4"}


@given(st.text().filter(_is_unknown))
def test_unknown_scheme_is_refused_with_the_value_and_all_that_are_known(name: str) -> None:
    with pytest.raises(SchemeError) as caught:
        find_scheme(name)
    assert repr(name) in str(caught.value)
    assert all(known in str(caught.value) for known in _NAMES)


def test_names_and_summaries_are_unique() -> None:
    assert len(set(_NAMES)) == len(_NAMES)
    assert len({scheme.summary for scheme in SCHEMES}) == len(SCHEMES)
