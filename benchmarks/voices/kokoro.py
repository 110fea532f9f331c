"""Kokoro-82M at its published size, built and exported by its own package, with random weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.voices.voice import DURATIONS, BenchVoice, built, export_graph, imported_in_part

_FILE = Path(__file__).with_suffix(".json")
CONFIG: Mapping[str, Any] = json.loads(_FILE.read_text("utf-8"))
"""`config.json` of hexgrad/Kokoro-82M, without the ids of its phonemes."""

_HELD = {
    DURATIONS: "duration",
    # Errors of the pitch add up in the phase of the sine source, and no signal is left to compare.
    "pitch": "/F0_proj/Conv_output_0",
    "energy": "/N_proj/Conv_output_0",
}
_STYLES = 510


def build(folder: Path, config: Mapping[str, Any] = CONFIG) -> None:
    """Write `kokoro.onnx` and a style file of one voice into a folder."""
    import torch

    torch.manual_seed(0)
    empty = folder / "empty.pth"
    torch.save({}, empty)
    # What the package imports on top of its network turns texts into phonemes.
    with imported_in_part(("kokoro",), {}) as imported:
        module = imported("kokoro.model")
        network = module.KModel(
            repo_id="hexgrad/Kokoro-82M",
            config=dict(config),
            model=str(empty),
            disable_complex=True,
        ).eval()
        _let_speak(network)
        inputs = {"input_ids": torch.ones(1, 22, dtype=torch.long)}
        inputs |= {"style": torch.zeros(1, 256), "speed": torch.ones(1)}
        axes = {"input_ids": {1: "tokens"}, "waveform": {0: "samples"}, "duration": {0: "tokens"}}
        export_graph(module.KModelForONNX(network), inputs, axes, folder / "kokoro.onnx")
    empty.unlink()
    styles = np.random.default_rng(0).standard_normal((_STYLES, 1, 256), np.float32)
    with (folder / "voices-v1.0.bin").open("wb") as file:
        np.savez(file, af_random=styles * np.float32(0.1))


def _let_speak(network: Any) -> None:
    """Set what random weights do not know: a speaking rate, and that most of speech is voiced."""
    import torch

    with torch.no_grad():
        network.predictor.duration_proj.linear_layer.bias.fill_(-2.6)
        network.predictor.F0_proj.bias.fill_(120.0)


_PACKAGES, _INSTALL = ("kokoro", "torch", "transformers"), "kokoro==0.9.4 loguru==0.7.3"
_SPEC = built("kokoro.onnx", build, [Path(__file__), _FILE], _PACKAGES, _INSTALL)

VOICES = (BenchVoice(name="kokoro", spec=_SPEC, held=lambda _: _HELD),)
