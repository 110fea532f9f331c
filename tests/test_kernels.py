"""The micro-benchmark behind the targets: what follows from its figures, and what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.kernel_graphs import CASES
from benchmarks.kernels import choose, main, to_toml
from tts_compress.models.onnx_session import open_session
from tts_compress.paths import data_names
from tts_compress.quantize.onnx.integer import emit_integer, observed_tensors
from tts_compress.targets import Choices, Figures, find_target

if TYPE_CHECKING:
    from pathlib import Path


def _figures(choice: str, *rows: tuple[float, float], names: str = "max lookup") -> list[Figures]:
    return [
        Figures(choice=choice, shape="test", us=dict(zip(names.split(), row, strict=True)))
        for row in rows
    ]


def test_the_fastest_over_all_graphs_is_chosen() -> None:
    now = Choices(leaky_relu="max")
    assert choose(_figures("leaky_relu", (10, 5), (10, 11)), now).leaky_relu == "lookup"
    assert choose(_figures("leaky_relu", (10, 5), (10, 30)), now).leaky_relu == "max"


def test_what_is_hardly_faster_changes_nothing() -> None:
    """Two runs differ by a percent or two; files that flip with the weather help nobody."""
    assert choose(_figures("leaky_relu", (10, 9.8)), Choices()).leaky_relu == "max"
    now = Choices(leaky_relu="lookup")
    assert choose(_figures("leaky_relu", (9.8, 10)), now).leaky_relu == "lookup"


@pytest.mark.parametrize(
    ("integer", "narrowest"),
    [
        ({8: 1.0, 16: 1.0, 32: 1.0}, 1),
        ({8: 3.0, 16: 1.0, 32: 1.0}, 16),
        ({8: 1.0, 16: 3.0, 32: 1.0}, 32),
    ],
)
def test_narrowest_is_where_integers_win_from_there_on(
    integer: dict[int, float], narrowest: int
) -> None:
    rows = [
        Figures(choice="narrowest", shape="", us={"integer": us, "real": 2.0}, channels=channels)
        for channels, us in integer.items()
    ]
    assert choose(rows, Choices()).narrowest == narrowest


@pytest.mark.parametrize("name", data_names("calib/targets"))
def test_shipped_choices_follow_from_their_figures(name: str) -> None:
    target = find_target(name)
    if not target.measured:
        assert target.choices == find_target("x86-vnni").choices, target.assumption
        return
    assert {row.choice for row in target.figures} == set(Choices.model_fields)
    assert choose(target.figures, target.choices) == target.choices


@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case.shape)
def test_alternatives_compute_the_same(case: object) -> None:
    """Figures compare like with like only if every alternative makes the same signal."""
    assert isinstance(case, type(CASES[0]))
    target, model = find_target("x86-vnni"), case.model()
    wanted = open_session(model, "real", threads=1).run(["y"], case.feed())[0]
    for alternative in case.alternatives:
        plan = case.plan(alternative, target)
        if plan is None:
            continue
        names = observed_tensors(model, plan)
        values = open_session(case.tapped(names), "tapped", threads=1).run(names, case.feed())
        spans = {n: (float(v.min()), float(v.max())) for n, v in zip(names, values, strict=True)}
        integer = emit_integer(model, plan, spans)
        found = open_session(integer, alternative, threads=1).run(["y"], case.feed())[0]
        error = np.square(found - wanted).mean() / np.square(wanted).mean()
        assert error < 10**-2.5, alternative


def test_a_measured_target_is_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.kernels.CASES", CASES[-1:])
    monkeypatch.setattr("benchmarks.torch_kernels.SHAPES", ((2, 64, 64),))
    path = tmp_path / "mine.toml"
    assert main(["--target", "arm64", "--rounds", "1", "--output", str(path)]) == 0
    found = find_target(str(path))
    assert found.measured
    assert found.signed
    assert to_toml(found) == path.read_text("utf-8")
    assert main(["--target", "z80", "--output", str(path)]) == 2
    assert "no targets named 'z80'" in capsys.readouterr().err
