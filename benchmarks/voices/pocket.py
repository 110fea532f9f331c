"""Pocket-TTS 100M in the five graphs of its ONNX port, with random weights: 5 s of audio."""

from pathlib import Path

from benchmarks.voices.voice import BenchVoice, built

_CODE = Path(__file__).parents[1] / "pocket_graphs.py"
_RELEASE = "english_2026-10"
_CONTRACT = """version = 1
base = "pocket-tts"
until.speech = { above = 1e9, longest = 63 }
"""


def _build(folder: Path) -> None:
    import numpy as np
    import torch

    from benchmarks.networks.pocket import build_release
    from benchmarks.pocket_graphs import write_graphs
    from tts_compress.audio import Audio, write_wav

    torch.manual_seed(0)
    write_graphs(build_release(_RELEASE), folder)
    (folder / "contract.toml").write_text(_CONTRACT, encoding="utf-8")
    noise = np.random.default_rng(0).standard_normal(5 * 24_000, np.float32) * np.float32(0.1)
    write_wav(folder / "reference.wav", Audio(samples=noise, sample_rate=24_000))


_SPEC = built("text_conditioner.onnx", _build, [_CODE, _CONTRACT], ["torch", "pocket-tts"])

VOICES = (BenchVoice(name="pocket", spec=_SPEC, held=lambda _: {}),)
