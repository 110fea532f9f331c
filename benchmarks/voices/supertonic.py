"""Supertonic 3 at the size of its published graphs, with random weights.

Its package holds no networks, so they are built as what is published of their structure says.
"""

from pathlib import Path

from benchmarks.voices.voice import DURATIONS, BenchVoice, keep_folder

_CODE = Path(__file__).parents[1] / "supertonic.py"


def _build(folder: Path) -> None:
    from benchmarks.supertonic import Sizes, write_voice

    write_voice(folder, Sizes())


def _spec(work: Path) -> str:
    folder = keep_folder(work, "supertonic", [_CODE], _build, ["torch"])
    return str(folder / "onnx" / "duration_predictor.onnx")


VOICES = (
    BenchVoice(
        name="supertonic",
        spec=_spec,
        # Seconds of the whole, the only output of the first graph.
        held=lambda graph: {DURATIONS: graph.output[0].name},
    ),
)
