"""A voice's files with its sound's graph in stages beside them, for players that stream.

`stream/` holds the encoder, the stages, all their weights in one file that a runtime maps into
memory, and `stream.json`. The unsplit voice is there, too, for programs that know no stages.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
from onnx.external_data_helper import convert_model_to_external_data

from tts_compress.artifact import atomic_directory
from tts_compress.models.onnx_model import OnnxVoice
from tts_compress.models.streaming import STREAM_NAME, chunk_bounds

_WEIGHTS = "weights.bin"
_SMALLEST = 4096
"""Bytes of a weight that is kept outside its graph: a page."""


def export_stream(voice: OnnxVoice, directory: Path | str, *, force: bool = False) -> list[Path]:
    """Write a voice's files and `stream/`.

    Args:
        voice: A voice of graphs, compressed or not.
        directory: The directory to create.
        force: Replace an earlier export.

    Returns:
        The stages' files in the order in which they run, then `stream.json`.

    Raises:
        ModelError: Most of the voice is not local in time; the operator is named.
        ArtifactError: The directory exists and `force` is not given, or cannot be written.
    """
    target, cut = Path(directory), voice.cut()
    with atomic_directory(target, marker=STREAM_NAME, force=force) as partial:
        saved = voice.save(partial / "voice")
        for path in saved.iterdir():
            shutil.move(path, partial / path.name)
        saved.rmdir()
        folder = (partial / STREAM_NAME).parent
        folder.mkdir()
        named = [(f"stage{number}.onnx", model) for number, model in enumerate(cut.models, 1)]
        if cut.encoder is not None:
            named.insert(0, ("encoder.onnx", cut.encoder))
        for name, model in named:
            _write(model, folder / name)
        (folder / _WEIGHTS).chmod(0o644)  # onnx makes files that only their owner can read
        content = _settings(voice, cut.stages, [name for name, _ in named])
        text = json.dumps(content, indent=1)
        (partial / STREAM_NAME).write_text(f"{text}\n", encoding="utf-8")
    return [target / STREAM_NAME, *((target / STREAM_NAME).parent / name for name, _ in named)]


def _write(model: onnx.ModelProto, path: Path) -> None:
    """Write a graph; its weights are appended to those of the others."""
    convert_model_to_external_data(model, location=_WEIGHTS, size_threshold=_SMALLEST)
    onnx.save(model, path)


def _settings(voice: OnnxVoice, stages: Any, graphs: list[str]) -> dict[str, Any]:
    """Return what a player has to know."""
    spectrum = [*voice.parts.values()][-1].table.spectrum
    first, most = chunk_bounds(voice.sample_rate, stages)
    return {
        "format_version": 1,
        "sample_rate": voice.sample_rate,
        "first_frames": first,
        "most_frames": most,
        "inputs": _inputs(voice),
        "encoder": graphs[0] if len(graphs) > len(stages) else None,
        "stages": [
            {"graph": name, **asdict(stage)}
            for name, stage in zip(graphs[-len(stages) :], stages, strict=True)
        ],
        "spectrum": None if spectrum is None else spectrum.model_dump(mode="json"),
    }


def _inputs(voice: OnnxVoice) -> dict[str, Any] | None:
    """Return what a voice of one graph is given: `ids`, their `length`, or numbers; with types."""
    if len(voice.parts) > 1:
        return None
    part = voice.parts[""]
    kinds = {"tokens": "ids", "lengths": "length"}
    call = voice.two_calls("")[0]
    return {
        name: (kinds.get(part.roles[name].role, call[name].tolist()), str(call[name].dtype))
        for name in part.roles
        if name in call
    }
