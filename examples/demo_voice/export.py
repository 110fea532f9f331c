"""Step 5, ``export``: write ``demo.onnx`` and ``demo.onnx.json`` as Piper expects them."""

from __future__ import annotations

import json
import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .model import VoiceConfig, build_voice
from .speech import SAMPLE_RATE

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 10_000_000
"""Bytes the exported file must not exceed."""
OPSET = 15
NOISE_SCALE, LENGTH_SCALE, NOISE_W = 0.333, 1.0, 0.2


class Exported(nn.Module):
    """Piper's interface: ids ``[1, S]``, lengths ``[1]``, scales ``[3]`` -> ``[1, 1, 1, n]``."""

    def __init__(self, voice: Any) -> None:
        super().__init__()
        self.voice = voice

    def forward(self, ids: Tensor, lengths: Tensor, scales: Tensor) -> Tensor:
        """``scales`` are noise_scale, length_scale and noise_w."""
        audio: Tensor = self.voice.infer(
            ids,
            lengths,
            noise_scale=scales[0],
            length_scale=scales[1],
            noise_scale_w=scales[2],
        )[0]
        return audio.unsqueeze(1)


def fold_weight_norm(voice: nn.Module) -> None:
    """Fold weight normalisation into plain weights everywhere (flow and decoder)."""
    for module in voice.modules():
        if hasattr(module, "weight_g"):
            nn.utils.remove_weight_norm(module)


def load_voice(checkpoint: Path) -> Any:
    """Return the averaged voice of a training checkpoint, ready for inference."""
    saved = torch.load(checkpoint, weights_only=True)
    voice = build_voice(VoiceConfig())
    voice.load_state_dict(saved["average"])
    voice.eval()
    fold_weight_norm(voice)
    return voice


@torch.no_grad()
def calibrate_lengths(voice: Any, work: Path, count: int = 40) -> float:
    """Scale the predicted durations so that their total meets the teacher's; return the factor.

    A duration predictor sampled at a noise below 1 is biased to short durations.  The last
    step of its inverse is an affine map in the logarithm: its offset takes the factor.
    """
    torch.manual_seed(0)
    meta = json.loads((work / "meta.json").read_text(encoding="utf-8"))
    durations = torch.load(work / "durations.pt", weights_only=True)
    wanted, widths = 0, []
    for entry in [e for e in meta if e["i"] in durations][:count]:
        ids = torch.tensor(entry["ids"])
        hidden, _, _, mask = voice.enc_p(ids[None], torch.tensor([len(ids)]))
        log_width = voice.dp(hidden, mask, reverse=True, noise_scale=NOISE_W)
        widths.append(log_width.exp().flatten())
        wanted += int(durations[entry["i"]].sum())
    width, factor = torch.cat(widths), 1.0
    for _ in range(5):  # the frames are rounded up, so it is not linear
        factor *= wanted / float(torch.ceil(width * factor).sum())
    voice.dp.flows[0].m.data[0] -= math.log(factor)
    return factor


def write_onnx(voice: Any, path: Path) -> None:
    """Export with the tracing exporter; refuse files above ``LIMIT``."""
    torch.manual_seed(0)
    ids = torch.randint(1, 100, (1, 50))
    example = (ids, torch.tensor([50]), torch.tensor([NOISE_SCALE, LENGTH_SCALE, NOISE_W]))
    part = path.with_suffix(".part")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Exported(voice),
            example,
            str(part),
            opset_version=OPSET,
            input_names=["input", "input_lengths", "scales"],
            output_names=["output"],
            dynamic_axes={
                "input": {0: "batch_size", 1: "phonemes"},
                "input_lengths": {0: "batch_size"},
                "output": {0: "batch_size", 2: "time"},
            },
            dynamo=False,
        )
    if part.stat().st_size > LIMIT:
        raise ValueError(f"{part.stat().st_size} bytes, more than {LIMIT}")
    part.replace(path)


def write_config(path: Path) -> None:
    """Write the settings file next to the voice."""
    from piper.phoneme_ids import DEFAULT_PHONEME_ID_MAP

    config = {
        "audio": {"sample_rate": SAMPLE_RATE, "quality": "x_low"},
        "espeak": {"voice": "en-us"},
        "inference": {
            "noise_scale": NOISE_SCALE,
            "length_scale": LENGTH_SCALE,
            "noise_w": NOISE_W,
        },
        "phoneme_type": "espeak",
        "phoneme_map": {},
        "phoneme_id_map": DEFAULT_PHONEME_ID_MAP,
        "num_symbols": VoiceConfig().n_vocab,
        "num_speakers": 1,
        "speaker_id_map": {},
        "piper_version": "1.0.0",
        "language": {
            "code": "en_US",
            "family": "en",
            "region": "US",
            "name_native": "English",
            "name_english": "English",
            "country_english": "United States",
        },
        "dataset": "flite_rms_demo",
    }
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def export(work: Path, target: Path) -> None:
    """Write the two files from ``WORK/checkpoint.pt``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    voice = load_voice(work / "checkpoint.pt")
    factor = calibrate_lengths(voice, work)
    write_onnx(voice, target)
    write_config(target.with_name(target.name + ".json"))
    print(f"{target.name}: {target.stat().st_size} bytes, durations scaled by {factor:.3f}")
