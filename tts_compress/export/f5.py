"""F5-TTS as three graphs, with the inputs and outputs that its users' runtimes have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tts_compress.errors import ArtifactError
from tts_compress.export.f5_preprocess import Preprocess
from tts_compress.export.f5_settings import F5GraphOptions
from tts_compress.export.f5_step import Step
from tts_compress.export.tracing import Signature, trace, write_graph
from tts_compress.export.vocos import VocosGraph

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["F5_GRAPHS", "Decode", "export_f5"]

F5_GRAPHS = ("preprocess.onnx", "transformer.onnx", "decode.onnx")
"""In the order they are run."""

_TIME = {1: "max_duration"}
_CONDITIONS: Mapping[str, Mapping[int, str]] = {
    "rope_cos": _TIME,
    "rope_sin": _TIME,
    "cat_mel_text": _TIME,
    "cat_mel_text_drop": _TIME,
}
_PREPROCESS = Signature(
    inputs={"audio": {2: "samples"}, "text_ids": {1: "symbols"}, "max_duration": {}},
    outputs={"noise": _TIME, **_CONDITIONS, "ref_signal_len": {}},
)
_STEP = Signature(
    inputs={"noise": _TIME, **_CONDITIONS, "time_step": {}},
    outputs={"denoised": _TIME, "next_time_step": {}},
)
_DECODE = Signature(
    inputs={"denoised": _TIME, "ref_signal_len": {}},
    outputs={"output_audio": {2: "samples"}},
)
_EXAMPLE_SECONDS = 0.5
_EXAMPLE_SYMBOLS = 11


class Decode(nn.Module):
    """The third graph.

    Args:
        vocos: The official vocoder; it is not changed.
    """

    def __init__(self, vocos: nn.Module) -> None:
        super().__init__()
        self.vocoder = VocosGraph(vocos)

    def forward(self, denoised: torch.Tensor, ref_signal_len: torch.Tensor) -> torch.Tensor:
        """Return audio (1, 1, samples), int16, of mel (1, n, bands) behind the recording."""
        spoken = denoised[:, ref_signal_len[0] :].transpose(1, 2)
        audio = torch.clamp(self.vocoder(spoken), -1, 1) * 32_767
        return torch.round(audio).to(torch.int16)[:, None]


def export_f5(
    transformer: nn.Module,
    vocoder: nn.Module,
    directory: Path | str,
    options: F5GraphOptions | None = None,
) -> list[Path]:
    """Write `preprocess.onnx`, `transformer.onnx` and `decode.onnx`, FP32.

    Inputs and outputs are named and typed as those of the graphs that F5-TTS' users run:

    1. audio (1, 1, L) int16, text_ids (1, N) int32, max_duration (1,) int64 → noise, rope_cos,
       rope_sin, cat_mel_text, cat_mel_text_drop, ref_signal_len;
    2. noise, rope_cos, rope_sin, cat_mel_text, cat_mel_text_drop, time_step (1,) int32 →
       denoised, next_time_step; it is called `nfe_step` times, from time step 0, with what it
       returned; other noise than the first graph's can be given (without guidance there is no
       cat_mel_text_drop);
    3. denoised, ref_signal_len → output_audio (1, 1, samples) int16, without the recording.

    The recording's level is the caller's: upstream amplifies quiet ones before and attenuates the
    speech after.

    Args:
        transformer: The official `DiT`; it is not changed.
        vocoder: The official Vocos; it is not changed.
        directory: An existing folder.
        options: Constants of the graphs.

    Raises:
        ModelError: A module cannot be exported.
        ArtifactError: A file cannot be written.
    """
    chosen = options or F5GraphOptions()
    folder = Path(directory)
    if not folder.is_dir():
        raise ArtifactError(f"no folder '{folder}'; create it first")
    first = Preprocess(transformer, chosen.frames).eval()
    audio = torch.ones(1, 1, int(chosen.frames.sample_rate * _EXAMPLE_SECONDS), dtype=torch.int16)
    ids = torch.arange(_EXAMPLE_SYMBOLS, dtype=torch.int32)[None]
    calls: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...], Signature]] = {}
    example = (audio, ids, torch.tensor([audio.shape[2] // chosen.frames.hop_length * 2]))
    with torch.no_grad():
        made: Any = first(*example)
    calls[F5_GRAPHS[0]] = (first, example, _PREPROCESS)
    start = torch.zeros(1, dtype=torch.int32)
    step = Step(transformer, chosen).eval()
    calls[F5_GRAPHS[1]] = (step, (*made[: 5 if step.guided else 4], start), _step_signature(step))
    calls[F5_GRAPHS[2]] = (Decode(vocoder).eval(), (made[0], made[-1]), _DECODE)
    return [write_graph(trace(*call), folder / name) for name, call in calls.items()]


def _step_signature(step: Step) -> Signature:
    inputs = {k: v for k, v in _STEP.inputs.items() if step.guided or k != "cat_mel_text_drop"}
    return replace(_STEP, inputs=inputs)
