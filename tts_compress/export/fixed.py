"""A voice whose sound is made in fixed sizes, for NPUs and delegates that take no others.

`fixed/` holds the encoder, which makes frames of a text on the host, a graph for each number of
frames, and `fixed.json`, which states what the host does: pad, mask, and cut.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx

from tts_compress.errors import ModelError
from tts_compress.export.stream import beside, stated_inputs, write_settings
from tts_compress.models.onnx_voice import OnnxVoice
from tts_compress.models.streaming import prepare_part
from tts_compress.onnx.fixed import FixedGraph, fix_graph

_NAME = "fixed/fixed.json"
_MOST = 1 << 14
"""Most frames of a graph; three minutes of most voices."""


def export_fixed(
    voice: OnnxVoice, directory: Path | str, sizes: Sequence[int], *, force: bool = False
) -> list[Path]:
    """Write a voice's files and `fixed/`.

    Args:
        voice: A voice of one graph that makes samples, compressed or not.
        directory: The directory to create.
        sizes: Numbers of frames; an utterance takes the smallest that holds it, or several windows.
        force: Replace an earlier export.

    Returns:
        `fixed.json`, then the encoder, then the graphs by size.

    Raises:
        ModelError: The voice has several graphs, is not local in time, or an operator or size does
            not fit; which is named.
        ArtifactError: The directory exists and `force` is not given, or cannot be written.
    """
    if len(voice.parts) > 1 or voice.parts[""].table.spectrum is not None:
        raise ModelError(f"'{voice.spec}' has several graphs, or makes spectra; one is exported")
    if not sizes or not all(0 < size <= _MOST for size in sizes):
        raise ModelError(f"sizes are 1 to {_MOST} frames, such as 64,128,256")
    part, model, calls = voice.parts[""], voice.graph(), voice.two_calls("")
    prepared = prepare_part(part, model, calls, original=voice.manifest is None)
    encoder, graphs = fix_graph(*prepared, sorted(set(sizes)), voice.spec)
    if encoder is None:
        raise ModelError(f"'{voice.spec}' has no encoder; fix its inputs themselves")
    target = Path(directory)
    with beside(voice, target / _NAME, force=force) as folder:
        names = [f"sound-{graph.frames}.onnx" for graph in graphs]
        onnx.save(encoder, folder / "encoder.onnx")
        for name, graph in zip(names, graphs, strict=True):
            onnx.save(graph.model, folder / name)
        write_settings(_settings(voice, graphs, names), folder / Path(_NAME).name)
    return [target / _NAME, *((target / _NAME).parent / n for n in ("encoder.onnx", *names))]


def _settings(
    voice: OnnxVoice, graphs: Sequence[FixedGraph], names: Sequence[str]
) -> dict[str, Any]:
    """Return what a player has to know."""
    stage = graphs[0].stage
    return {
        "format_version": 1,
        "sample_rate": voice.sample_rate,
        "inputs": stated_inputs(voice),
        "encoder": "encoder.onnx",
        "reads": stage.reads[0],
        "axis": stage.axis,
        "sides": stage.sides,
        "returns": stage.returns[0],
        "hop": stage.hop,
        "extra": stage.extra,
        "before": stage.before,
        "after": stage.after,
        "graphs": [
            {
                "graph": name,
                "frames": graph.frames,
                "masks": {name: asdict(mask) for name, mask in graph.masks.items()},
            }
            for name, graph in zip(names, graphs, strict=True)
        ],
    }
