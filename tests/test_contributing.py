"""CONTRIBUTING: its example of a metric works as it stands there."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.docs_blocks import ROOT, read_blocks
from tts_compress.audio import Audio
from tts_compress.evaluation.metric import Audios, Metric


def _tone(hertz: float) -> Audio:
    turns = np.arange(8000) * hertz / 8000
    return Audio(samples=np.sin(2 * np.pi * turns).astype(np.float32), sample_rate=8000)


def test_the_example_of_a_metric_measures_and_has_a_line() -> None:
    """Authors of a metric had to read metric.py for its unit, change and help."""
    (block,) = (b for b in read_blocks(ROOT / "CONTRIBUTING.md") if b.language == "python")
    names: dict[str, Any] = {}
    exec(compile(block.text, str(block), "exec"), names)  # noqa: S102  a page of our own
    (metric,) = names["METRICS"]
    assert isinstance(metric, Metric)
    assert metric.observe is not None
    audios = Audios(reference=_tone(500), candidate=_tone(1000), other_seed=_tone(500))
    observed = [metric.observe(audios)] * 2
    value = metric.compute(SimpleNamespace(observations=lambda _: observed))
    assert value.reference == pytest.approx(500, rel=1e-3)
    (row,) = metric.table_rows(value, None)
    assert (row.label, row.reference, row.candidate) == ("Spectral centroid", "500 Hz", "1000 Hz")
    assert row.change
    assert row.label in metric.terms


def test_files_that_the_page_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[\w]+/)+[\w]+\.py)`", text)
    homes = (ROOT, ROOT / "tts_compress")
    assert named
    assert [path for path in named if not any((home / path).is_file() for home in homes)] == []
