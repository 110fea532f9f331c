"""Targets: which one fits a processor, what a file may say, choices that follow from figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tts_compress.environment import Processor, describe_processor
from tts_compress.errors import RecipeError
from tts_compress.paths import data_names
from tts_compress.targets import find_target, name_target

if TYPE_CHECKING:
    from pathlib import Path

_TARGET = """
version = 1
name = "mine"
summary = "my own"
activations = "uint8"
weight_bits = {bits}
reason = "test"
measured = {measured}
{more}
[choices]
{choices}
"""

_MACHINE = """
[machine]
processor = "Fast CPU"
features = []
threads = 1
rounds = 3
packages = {{}}
command = "python -m benchmarks.kernels"
[[figures]]
choice = "{choice}"
shape = "(1, 16, 64)"
us = {{ max = 1.0, lookup = 2.0 }}
"""


def _write(folder: Path, **values: str) -> str:
    usual = {"bits": "8", "measured": "false", "more": 'assumption = "none"', "choices": ""}
    path = folder / "mine.toml"
    path.write_text(_TARGET.format(**usual | values) + values.get("machine", ""), "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("architecture", "features", "name"),
    [
        ("x86_64", ("avx2", "avx512_vnni"), "x86-vnni"),
        ("AMD64", ("avx_vnni",), "x86-vnni"),
        ("x86_64", ("avx2",), "x86"),
        ("aarch64", ("asimddp",), "arm64"),
        ("arm64", (), "arm64"),
    ],
)
def test_target_fits_the_processor(architecture: str, features: tuple[str, ...], name: str) -> None:
    processor = Processor(architecture=architecture, model="", cores=1, features=features)
    assert name_target(processor) == name
    assert find_target(name).name == name


def test_processor_without_a_target_is_an_error() -> None:
    processor = Processor(architecture="riscv64", model="", cores=1, features=())
    with pytest.raises(RecipeError, match=r"riscv64.*name one of arm64, x86, x86-vnni"):
        name_target(processor)


def test_host_is_the_processor_at_hand() -> None:
    assert find_target() == find_target("host") == find_target(name_target(describe_processor()))


def test_arithmetic_of_the_shipped_targets() -> None:
    """Without VNNI two products u8 × s8 are added in 16 bits: 255 · 63 · 2 fits, 127 does not."""
    targets = {name: find_target(name) for name in data_names("calib/targets")}
    assert {n: (t.signed, t.weight_limit) for n, t in targets.items()} == {
        "arm64": (True, 127),
        "x86": (False, 63),
        "x86-vnni": (False, 127),
    }
    limit = targets["x86"].weight_limit
    assert 2 * 255 * limit < 2**15 <= 2 * 255 * (2 * limit + 1)


def test_unknown_target_lists_the_shipped() -> None:
    with pytest.raises(RecipeError, match=r"no targets named 'z80'; shipped: arm64, x86, x86-vnni"):
        find_target("z80")


def test_own_target_is_read(tmp_path: Path) -> None:
    found = find_target(_write(tmp_path, choices='leaky_relu = "lookup"'))
    assert (found.name, found.choices.leaky_relu) == ("mine", "lookup")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"bits": "6"}, "weight_bits"),
        ({"choices": 'leaky_relu = "guess"'}, "choices.leaky_relu"),
        ({"choices": "colour = 1"}, "choices.colour"),
        ({"more": ""}, "states its assumption"),
        ({"measured": "true"}, r"needs \[machine\]"),
        ({"machine": _MACHINE.format(choice="leaky_relu")}, r"needs \[machine\]"),
        (
            {"measured": "true", "more": "", "machine": _MACHINE.format(choice="colour")},
            "figures of colour, which is no choice",
        ),
    ],
)
def test_wrong_target_is_refused_by_name(
    tmp_path: Path, values: dict[str, str], problem: str
) -> None:
    with pytest.raises(RecipeError, match=problem):
        find_target(_write(tmp_path, **values))
