"""Supertonic 3 at the size of its published graphs, with random weights."""

from pathlib import Path

from benchmarks.voices.voice import DURATIONS, BenchVoice, built

_CODE = Path(__file__).parents[1] / "supertonic.py"


def _build(folder: Path) -> None:
    from benchmarks.supertonic import Sizes, write_voice

    write_voice(folder, Sizes())


_SPEC = built("onnx/duration_predictor.onnx", _build, [_CODE], ["torch"])

VOICES = (
    BenchVoice(
        name="supertonic",
        spec=_SPEC,
        # Seconds of the whole, the only output of the first graph.
        held=lambda graph: {DURATIONS: graph.output[0].name},
    ),
)
