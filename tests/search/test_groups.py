"""Which layers get one format, and which formats there are."""

import pytest

from tts_compress.errors import RecipeError
from tts_compress.onnx.session import group_of
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.recipes.recipe import find_groups
from tts_compress.search.choices import find_formats

_MODULES = [
    "dec.conv_pre",
    "dec.resblocks.1.convs.0",
    "dec.resblocks.1.convs.1",
    "dec.resblocks.10.convs.0",
    "flow.flows.6.pre",
    "flow.flows.6.enc.in_layers.0",
]


def test_layers_are_grouped_up_to_the_first_number_of_their_names() -> None:
    groups = {group.name: group for group in find_groups(_MODULES)}
    assert list(groups) == ["dec.conv_pre", "dec.resblocks.1", "dec.resblocks.10", "flow.flows.6"]
    # Not `dec.resblocks.1*`, which would also match block 10.
    assert groups["dec.resblocks.1"].patterns == ("dec.resblocks.1.*",)
    assert groups["dec.conv_pre"].patterns == ("dec.conv_pre",)
    assert groups["flow.flows.6"].component == "flow"


def test_patterns_that_are_given_come_first_and_take_what_they_match() -> None:
    groups = find_groups(_MODULES, ["flow.*", "*.convs.0"])
    assert [group.name for group in groups[:2]] == ["flow.*", "*.convs.0"]
    assert groups[1].modules == ("dec.resblocks.1.convs.0", "dec.resblocks.10.convs.0")
    assert [group.name for group in groups[2:]] == ["dec.conv_pre", "dec.resblocks.1"]
    assert len(find_groups(_MODULES, each_layer=True)) == len(_MODULES)


def test_a_pattern_without_layers_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"'vocoder.\*' matches no layer.*dec, flow"):
        find_groups(_MODULES, ["vocoder.*"])


def test_formats_are_those_of_the_family_s_recipes_that_help_a_cpu() -> None:
    names = [form.name for form in find_formats("piper")]
    assert {"float16", "int8", "int8 static", "int8 dynamic"} <= set(names)
    assert not {"bfloat16", "float16 float16"} & set(names)
    assert [form.name for form in find_formats("piper", ["bfloat16"])] == ["bfloat16"]
    with pytest.raises(RecipeError, match=r"no format 'int7' for family 'piper'.*'int8 static'"):
        find_formats("piper", ["int7"])


def test_layers_without_an_integer_kernel_are_stored_in_eight_bits() -> None:
    (form,) = find_formats("piper", ["int8 static"])
    computed, stored = form.rules("dec.*")
    assert (computed.weights, computed.activations) == (Weights.INT8, Activations.STATIC)
    assert (stored.weights, stored.activations) == (Weights.INT8, Activations.NONE)


@pytest.mark.parametrize(
    ("operator", "group"),
    [
        ("/dec/resblocks.1/convs.0/Conv", "dec.resblocks.1"),
        ("/dec/resblocks.10/convs.0/Conv_nchwc", "dec.resblocks.10"),
        ("dec.conv_pre.weight.dequantized/DequantizeLinear", "dec.conv_pre"),
        ("/Ceil", ""),
    ],
)
def test_kernels_belong_to_the_group_that_their_name_holds(operator: str, group: str) -> None:
    assert group_of(operator, ["dec.conv_pre", "dec.resblocks.1", "dec.resblocks.10"]) == group
