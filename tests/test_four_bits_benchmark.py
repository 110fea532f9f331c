"""The benchmark of algorithms for four bits, on a small block."""

import sys

import pytest

pytest.importorskip("torch")

from benchmarks.four_bits import markdown, measure
from tts_compress.recipes.formats import Algorithm


def test_gptq_is_nearer_on_inputs_that_vary_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "neural_compressor", None)
    for name in [name for name in sys.modules if name.startswith("neural_compressor.")]:
        monkeypatch.delitem(sys.modules, name)
    rows = {row.algorithm: row for row in measure(64)}
    assert list(rows) == ["rtn", "gptq", "inc-rtn", "inc-gptq"]
    nearest, chosen = rows[Algorithm.RTN].snr_db, rows[Algorithm.GPTQ].snr_db
    assert nearest is not None
    assert chosen is not None
    assert chosen > nearest + 3
    lines = markdown(rows.values())
    assert lines[2].startswith("| `rtn` | rounding to nearest | ")
    assert lines[-1].endswith("| not installed (extra `inc`) |  |")


@pytest.mark.slow
def test_neural_compressor_is_measured_where_it_is_installed() -> None:
    pytest.importorskip("neural_compressor")
    rows = {row.algorithm: row for row in measure(64)}
    for ours, theirs in ((Algorithm.RTN, Algorithm.INC_RTN), (Algorithm.GPTQ, Algorithm.INC_GPTQ)):
        assert rows[theirs].snr_db == pytest.approx(rows[ours].snr_db, abs=1)
