"""A voice's files with its sound's graph in stages beside them, for players that stream.

`stream/` holds the encoder, the stages, all their weights in one file that a runtime maps into
memory, and `stream.json`, which states what to give them, a canary, and each file's SHA-256. The
unsplit voice is there, too, for programs that know no stages.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
from onnx.external_data_helper import convert_model_to_external_data

from tts_compress.artifact import atomic_directory, sha256_of
from tts_compress.errors import ModelError
from tts_compress.export.canary import make_canary
from tts_compress.models.files import STREAM_NAME
from tts_compress.models.onnx_voice import OnnxVoice
from tts_compress.models.streaming import chunk_bounds
from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.stages import StagedGraph

_WEIGHTS = "weights.bin"
_SMALLEST = 4096
"""Bytes of a weight that is kept outside its graph: a page."""


def export_stream(
    voice: OnnxVoice, directory: Path | str, *, whole: bool = False, force: bool = False
) -> list[Path]:
    """Write a voice's files and `stream/`.

    Args:
        voice: A voice of graphs, compressed or not.
        directory: The directory to create.
        whole: For players that take a single graph: one that is not local in time is that graph
            and no stages, which speaks whole texts.
        force: Replace an earlier export.

    Returns:
        The stages' files in the order in which they run, then `stream.json`.

    Raises:
        ModelError: Most of the voice is not local in time, and the operator is named; or it has
            several graphs and `whole` is asked for.
        ArtifactError: The directory exists and `force` is not given, or cannot be written.
    """
    target, cut = Path(directory), _cut(voice, whole=whole)
    with beside(voice, target / STREAM_NAME, force=force) as folder:
        named = [(f"stage{number}.onnx", model) for number, model in enumerate(cut.models, 1)]
        if cut.encoder is not None:
            named.insert(0, ("encoder.onnx", cut.encoder))
        for name, model in named:
            _write(model, folder / name)
        (folder / _WEIGHTS).chmod(0o644)  # onnx makes files that only their owner can read
        content = _settings(voice, cut.stages, [name for name, _ in named])
        content["sha256"] = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
        write_settings(content, folder / Path(STREAM_NAME).name)
    return [target / STREAM_NAME, *((target / STREAM_NAME).parent / name for name, _ in named)]


@contextmanager
def beside(voice: OnnxVoice, settings: Path, *, force: bool) -> Iterator[Path]:
    """Write a voice's files; yield a folder beside them, for graphs and the file of settings."""
    directory = settings.parents[1]
    marker = str(settings.relative_to(directory))
    with atomic_directory(directory, marker=marker, force=force) as partial:
        saved = voice.save(partial / "voice")
        for path in saved.iterdir():
            shutil.move(path, partial / path.name)
        saved.rmdir()
        folder = partial / settings.parent.name
        folder.mkdir()
        yield folder


def write_settings(content: Mapping[str, Any], path: Path) -> None:
    """Write what a player has to know."""
    path.write_text(f"{json.dumps(content, indent=1)}\n", encoding="utf-8")


def _cut(voice: OnnxVoice, *, whole: bool) -> StagedGraph:
    if whole and not _is_plain(voice):
        raise ModelError(
            f"'{voice.spec}' has several graphs, or makes spectra, which the browser's player does "
            "not play; --stream writes its stages for `tts-compress stream`"
        )
    try:
        return voice.cut()
    except ModelError:
        if not whole:
            raise
    return StagedGraph(encoder=copy_model(voice.graph()), stages=(), models=(), share=0.0)


def _is_plain(voice: OnnxVoice) -> bool:
    """Return True for a voice of one graph that makes samples."""
    return len(voice.parts) == 1 and voice.parts[""].table.spectrum is None


def _write(model: onnx.ModelProto, path: Path) -> None:
    """Write a graph; its weights are appended to those of the others."""
    convert_model_to_external_data(model, location=_WEIGHTS, size_threshold=_SMALLEST)
    onnx.save(model, path)


def _settings(voice: OnnxVoice, stages: Any, graphs: list[str]) -> dict[str, Any]:
    """Return what a player has to know."""
    spectrum = [*voice.parts.values()][-1].table.spectrum
    first, most = chunk_bounds(voice.sample_rate, stages) if stages else (0, 0)
    return {
        "format_version": 1,
        "sample_rate": voice.sample_rate,
        "first_frames": first,
        "most_frames": most,
        "inputs": stated_inputs(voice),
        "output": [*voice.parts.values()][-1].output,
        "encoder": graphs[0] if len(graphs) > len(stages) else None,
        "stages": [
            {"graph": name, **asdict(stage)}
            for name, stage in zip(graphs[len(graphs) - len(stages) :], stages, strict=True)
        ],
        "spectrum": None if spectrum is None else spectrum.model_dump(mode="json"),
        "canary": make_canary(voice) if _is_plain(voice) else None,
    }


def stated_inputs(voice: OnnxVoice) -> dict[str, Any] | None:
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
