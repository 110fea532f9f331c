"""Matcha-TTS and HiFi-GAN as icefall publishes them for sherpa-onnx, with random weights.

The networks are those of the package `matcha-tts`; icefall's are copies of them. Inputs, metadata,
operator set and configuration are icefall's.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx

from benchmarks.voices.voice import DURATIONS, BenchVoice, built, export_graph, imported_in_part
from tts_compress.errors import ModelError

STEPS = 3
"""Steps of the flow; sherpa-onnx documents `model-steps-3.onnx`."""

_SYMBOLS = 157
"""Symbols of icefall's voice in English; here the first of them are espeak-ng's phonemes."""

_PHONEMES = (
    "_^$ ,.;:!?-'()\"abcdefghijklmnopqrstuvwxyzæçðøħŋœɐɑɒɓɔɕɖɗɘəɚɛɜɞɟɠɡɢɣɤɥɦɧɨɪɫɬɭɮɯɰɱɲɳɴɵɶɸɹɺɻɽɾ"
    "ʀʁʂʃʄʈʉʊʋʌʍʎʏʐʑʒʔʕˈˌːˑ˞βθχᵻⱱ"
)
_MELS = 80

_FILE = Path(__file__).with_suffix(".json")
CONFIG: Mapping[str, Any] = json.loads(_FILE.read_text("utf-8"))
"""Sizes in icefall's `egs/ljspeech/TTS/matcha/train.py`."""

_METADATA = {
    "model_type": "matcha-tts",
    "language": "English",
    "voice": "en-us",
    "has_espeak": "1",
    "jieba": "0",
    "n_speakers": "1",
    "sample_rate": "22050",
    "version": "1",
    "pad_id": "0",
    "use_eos_bos": "0",
    "num_ode_steps": str(STEPS),
}


def build(folder: Path, config: Mapping[str, Any] = CONFIG, channels: int = 128) -> None:
    """Write both graphs and the table of tokens into a folder."""
    import torch

    torch.manual_seed(0)
    # The packages' own beginnings import what trains and draws (lightning, hydra, matplotlib).
    with imported_in_part(("matcha", "matcha.utils"), _stand_ins()) as imported:
        matcha = imported("matcha.models.matcha_tts").MatchaTTS
        _export_matcha(matcha, folder / f"model-steps-{STEPS}.onnx", config)
    _export_vocoder(folder / "hifigan_v2.onnx", channels)
    table = "".join(f"{symbol} {number}\n" for number, symbol in enumerate(_PHONEMES))
    (folder / "tokens.txt").write_text(table, encoding="utf-8")


def _export_matcha(kind: Any, path: Path, config: Mapping[str, Any]) -> None:
    import torch

    network = kind(
        n_vocab=_SYMBOLS,
        n_spks=1,
        spk_emb_dim=64,
        n_feats=_MELS,
        encoder=SimpleNamespace(
            encoder_type="RoPE Encoder",
            encoder_params=SimpleNamespace(**config["encoder"]),
            duration_predictor_params=SimpleNamespace(**config["durations"]),
        ),
        decoder=config["decoder"],
        cfm=SimpleNamespace(name="CFM", solver="euler", sigma_min=1e-4),
        data_statistics={"mel_mean": -5.5, "mel_std": 2.1},  # about LJSpeech's
        out_size=None,
    ).eval()
    with torch.no_grad():  # about two frames a token, as of speech with blanks between phonemes
        network.encoder.proj_w.proj.bias.fill_(0.6)

    def speak(x: Any, x_length: Any, noise_scale: Any, length_scale: Any) -> Any:
        steps = {"n_timesteps": STEPS, "temperature": noise_scale, "length_scale": length_scale}
        return network.synthesise(x=x, x_lengths=x_length, **steps)["mel"]

    # Long, so that the table of rotary positions is.
    ids = torch.ones(1, 1000, dtype=torch.long)
    scale = torch.ones(1)
    inputs = {"x": ids, "x_length": torch.tensor([1000]), "noise_scale": scale}
    axes = {"x": {0: "N", 1: "L"}, "x_length": {0: "N"}, "mel": {0: "N", 2: "L"}}
    inputs |= {"length_scale": scale.clone()}
    _export(network, speak, inputs, axes, path, _METADATA)


def _export_vocoder(path: Path, channels: int) -> None:
    """Write HiFi-GAN V2; of the three that sherpa-onnx offers the one of phones."""
    import torch

    from benchmarks.hifigan import build_generator

    generator = build_generator(channels)
    with torch.no_grad():
        for layer in generator.modules():
            if isinstance(layer, torch.nn.Conv1d | torch.nn.ConvTranspose1d):
                # It begins with weights so small that nothing would be heard.
                torch.nn.init.kaiming_uniform_(layer.weight, a=1.0)
        loudness = generator.eval()(torch.randn(1, _MELS, 50)).square().mean().sqrt()
        generator.conv_post.weight *= 0.1 / loudness

    def speak(mel: Any) -> Any:
        return generator(mel).clamp(-1, 1).squeeze(1)

    axes = {"mel": {0: "N", 2: "L"}, "audio": {0: "N", 1: "L"}}
    metadata = {"model_type": "hifigan", "sample_rate": "22050", "version": "1"}
    _export(generator, speak, {"mel": torch.ones(1, _MELS, 100)}, axes, path, metadata)


def _export(
    network: Any,
    call: Callable[..., Any],
    inputs: dict[str, Any],
    axes: dict[str, dict[int, str]],
    path: Path,
    metadata: Mapping[str, str],
) -> None:
    import torch

    class Exported(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = network

        def forward(self, *values: Any) -> Any:
            return call(*values)

    export_graph(Exported(), inputs, axes, path, 14, metadata)


def _stand_ins() -> dict[str, dict[str, Any]]:
    """Return what the networks need of modules that import training and drawing."""
    import torch

    class Base(torch.nn.Module):
        """Networks without a trainer."""

        def save_hyperparameters(self, **_: object) -> None:
            """Keep nothing."""

        def update_data_statistics(self, values: Mapping[str, float]) -> None:
            """Keep what mel spectrograms are scaled by."""
            for name, value in values.items():
                self.register_buffer(name, torch.tensor(value))

    logger = {"get_pylogger": logging.getLogger}
    return {
        "matcha.utils": logger,
        "matcha.utils.pylogger": logger,
        "matcha.utils.monotonic_align": {},
        "matcha.models.baselightningmodule": {"BaseLightningClass": Base},
    }


def _held(graph: onnx.GraphProto) -> Mapping[str, str]:
    """Return the frames of each token: what is rounded up of an exponential."""
    for node in graph.node:
        if node.op_type == "Ceil":  # the second one rounds the length of the whole
            return {DURATIONS: node.output[0]}
    raise ModelError("the graph has no Ceil operator; Matcha's has, which makes whole frames")


_SPEC = built(
    f"model-steps-{STEPS}.onnx",
    build,
    [Path(__file__), _FILE],
    ("matcha-tts", "conformer", "diffusers", "torch"),
    "matcha-tts==0.0.7.2 conformer==0.3.2 diffusers==0.42.1 einops==0.8.2",
)
VOICES = (BenchVoice(name="matcha", spec=_SPEC, held=_held),)
