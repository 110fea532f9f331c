"""Supertonic 3 at the size of its published graphs, with random weights.

Its package holds no networks, so they are built as what is published of their structure says.
"""

from pathlib import Path

import onnx

from benchmarks.sentences import Lengths, Sentence, id_sentences
from benchmarks.voices.voice import DURATIONS, BenchVoice, keep_folder
from tts_compress.errors import MissingExtraError
from tts_compress.models.base import GraphModel


def _build(folder: Path) -> None:
    from benchmarks.supertonic.files import write_voice
    from benchmarks.supertonic.structure import Sizes

    write_voice(folder, Sizes())


def _spec(work: Path) -> str:
    code = [file.read_text("utf-8") for file in sorted(_CODE.glob("*.py"))]
    try:
        folder = keep_folder(work, "supertonic", code, _build, ["torch"])
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "torch") from error
    return str(folder / "onnx" / "duration_predictor.onnx")


def _sentences(voice: GraphModel, lengths: Lengths) -> list[Sentence]:
    return id_sentences(voice, lengths.tokens)


def _held(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the seconds that the whole takes, the only output of the first graph."""
    return {DURATIONS: graph.output[0].name}


_CODE = Path(__file__).parents[1] / "supertonic"
VOICES = (
    BenchVoice(name="supertonic", trained=False, spec=_spec, sentences=_sentences, held=_held),
)
