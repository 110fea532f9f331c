"""Files of NaturalSpeech2 as Amphion's trainer lays them out, without anything of Amphion."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tts_compress.models.naturalspeech2 import AMPHION
from tts_compress.models.naturalspeech2.network import CODEC, CODEC_VARIABLE

_ENCODER = {
    "encoder_layer": 6,
    "encoder_hidden": 512,
    "encoder_head": 8,
    "conv_filter_size": 2048,
    "conv_kernel_size": 9,
    "encoder_dropout": 0.2,
    "use_cln": True,
}
_PREDICTOR = {
    "input_size": 512,
    "filter_size": 512,
    "kernel_size": 3,
    "conv_layers": 30,
    "cross_attn_per_layer": 3,
    "attn_head": 8,
    "drop_out": 0.5,
}
_MODEL: dict[str, Any] = {
    "latent_dim": 128,
    "prior_encoder": {
        "vocab_size": 100,
        "pitch_min": 50,
        "pitch_max": 1100,
        "pitch_bins_num": 512,
        "encoder": _ENCODER,
        "duration_predictor": _PREDICTOR,
        "pitch_predictor": _PREDICTOR,
    },
    "diffusion": {
        "wavenet": {
            "input_size": 128,
            "hidden_size": 512,
            "out_size": 128,
            "num_layers": 40,
            "cross_attn_per_layer": 3,
            "dilation_cycle": 2,
            "attn_head": 8,
            "drop_out": 0.2,
        },
        "beta_min": 0.05,
        "beta_max": 20,
        "sigma": 1.0,
        "noise_factor": 1.0,
        "ode_solver": "euler",
        "diffusion_type": "diffusion",
    },
    "prompt_encoder": {**_ENCODER, "use_cln": False},
    "query_emb": {"query_token_num": 32, "hidden_size": 512, "head_num": 8},
    "inference_step": 500,
}


@pytest.fixture
def model_section() -> dict[str, Any]:
    """Return the section `model` of a configuration, to be changed."""
    return copy.deepcopy(_MODEL)


@pytest.fixture
def clone(tmp_path: Path, model_section: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a mock clone: its markers and configurations."""
    root = tmp_path / "clone"
    for marker in AMPHION.markers:
        (root / marker).parent.mkdir(parents=True, exist_ok=True)
        (root / marker).write_text("")
    (root / "config" / "ns2.json").write_text(json.dumps({"model": model_section}))
    experiment = root / "egs" / "tts" / "NaturalSpeech2" / "exp_config.json"
    experiment.parent.mkdir(parents=True)
    experiment.write_text(
        '{"base_config": "config/ns2.json", // the system\'s own\n "preprocess": {},}'
    )
    monkeypatch.setenv(AMPHION.variable, str(root))
    return root


@pytest.fixture
def make_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that writes an experiment's folder and returns its one checkpoint."""
    monkeypatch.delenv(CODEC_VARIABLE, raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))

    def make(*, weights: str = "pytorch_model.bin", config: str | None = None) -> Path:
        folder = tmp_path / "experiment" / "checkpoint" / "epoch-0089_step-0512912_loss-6.36"
        folder.mkdir(parents=True)
        (folder / weights).write_bytes(b"weights")
        (folder / CODEC).write_bytes(b"codec")
        if config is not None:
            (tmp_path / "experiment" / "args.json").write_text(config)
        return folder

    return make
