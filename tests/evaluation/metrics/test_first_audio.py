"""The first sound: of a voice in stages its first chunk, of other players the whole text."""

from types import SimpleNamespace

import pytest

from tts_compress.evaluation import EvaluationOptions
from tts_compress.evaluation.metrics.cost import METRICS
from tts_compress.evaluation.stages import Timings


def test_the_first_chunk_counts_and_the_whole_where_nothing_streams() -> None:
    """An older report, and a player of whole texts, have no other time than the whole's."""
    whole = Timings(spent=((0.8,) * 3, (1.6,) * 3), audio=((1.0,) * 3,) * 2)
    stages = Timings(
        spent=((0.9,) * 3, (1.7,) * 3), first=((0.1,) * 3, (0.2,) * 3), audio=((1.0,) * 3,) * 2
    )
    run = SimpleNamespace(timings=(whole, stages), options=EvaluationOptions())
    metric = next(metric for metric in METRICS if metric.name == "first_audio")
    first = metric.compute(run)
    assert first.ratio == pytest.approx(8)
    assert first.candidate.p95_ms == pytest.approx(200)
    middle, tail = metric.table_rows(first, None)
    assert middle.change.startswith("8.0× sooner")
    assert (tail.reference, tail.label) == ("1.60 s", "First sound, p95")
