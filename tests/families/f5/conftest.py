"""A tiny F5-TTS model in upstream's own files, made from its own network classes."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.families.tiny import write_voice
from tts_compress.models.f5.model import F5Model
from tts_compress.models.f5.network import official
from tts_compress.models.pretrained import quiet

_SYMBOLS = [chr(code) for code in range(32, 127)]  # the space first: it stands for the unknown

_ARCH = {
    "dim": 64,
    "depth": 2,
    "heads": 2,
    "dim_head": 32,
    "ff_mult": 2,
    "text_dim": 32,
    "text_mask_padding": True,
    "qk_norm": None,
    "conv_layers": 2,
    "pe_attn_head": None,
    "attn_backend": "torch",
    "attn_mask_enabled": False,
    "checkpoint_activations": False,
}
_MEL_SPEC = {
    "target_sample_rate": 24000,
    "n_mel_channels": 100,
    "hop_length": 256,
    "win_length": 1024,
    "n_fft": 1024,
    "mel_spec_type": "vocos",
}
_VOCODER = {
    "feature_extractor": {
        "class_path": "vocos.feature_extractors.MelSpectrogramFeatures",
        "init_args": {
            "sample_rate": 24000,
            "n_fft": 1024,
            "hop_length": 256,
            "n_mels": 100,
            "padding": "center",
        },
    },
    "backbone": {
        "class_path": "vocos.models.VocosBackbone",
        "init_args": {"input_channels": 100, "dim": 32, "intermediate_dim": 64, "num_layers": 2},
    },
    "head": {
        "class_path": "vocos.heads.ISTFTHead",
        "init_args": {"dim": 32, "n_fft": 1024, "hop_length": 256, "padding": "center"},
    },
}


@pytest.fixture(autouse=True)
def _keep_hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the seed that upstream leaves in the environment: Python starts with no large one."""
    monkeypatch.setenv("PYTHONHASHSEED", "random")  # afterwards it is as it was before


@pytest.fixture(scope="session")
def f5_packages() -> None:
    """Skip what needs F5-TTS where it is not installed."""
    for name in ("torch", "f5_tts", "vocos"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@pytest.fixture(scope="session")
def make_f5_dir(f5_packages: None) -> Callable[..., Path]:
    """Return a function that writes a tiny model's files; keywords change its architecture."""
    del f5_packages

    def make(folder: Path, backbone: str = "DiT", **arch: Any) -> Path:
        import torch

        yaml = import_module("yaml")
        from safetensors.torch import save_file

        (folder / "vocoder").mkdir(parents=True)
        (folder / "vocab.txt").write_text("".join(f"{s}\n" for s in _SYMBOLS), encoding="utf-8")
        stated = (_ARCH if backbone == "DiT" else {}) | arch
        config = {"model": {"backbone": backbone, "arch": stated, "mel_spec": _MEL_SPEC}}
        (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        (folder / "vocoder" / "config.yaml").write_text(yaml.safe_dump(_VOCODER), encoding="utf-8")
        model = official("f5_tts.model")
        torch.manual_seed(0)
        with quiet():
            transformer = getattr(model, backbone)(
                **stated, text_num_embeds=len(_SYMBOLS), mel_dim=100
            )
            vocoder = official("vocos").Vocos.from_hparams(str(folder / "vocoder" / "config.yaml"))
        for network in (transformer, vocoder):
            _make_everything_matter(network)
        weights = {f"ema_model.transformer.{k}": v for k, v in transformer.state_dict().items()}
        save_file(weights | {"step": torch.zeros(1)}, folder / "model_1.safetensors")
        torch.save(vocoder.state_dict(), folder / "vocoder" / "pytorch_model.bin")
        write_voice(folder / "reference.wav")
        (folder / "reference.txt").write_text("one two three four five six seven.\n")
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_f5_dir(tmp_path_factory: pytest.TempPathFactory, make_f5_dir: Callable[..., Path]) -> Path:
    """Return the files of a tiny model with a recording; do not write into the folder."""
    return make_f5_dir(tmp_path_factory.mktemp("f5") / "tiny")


@pytest.fixture(scope="session")
def tiny_f5(tiny_f5_dir: Path) -> F5Model:
    """Return the tiny model, loaded, with four steps of its solver."""
    return F5Model.open(f"{tiny_f5_dir}?nfe_step=4", f"f5-tts:{tiny_f5_dir}?nfe_step=4")


def _make_everything_matter(network: Any) -> None:
    """Give values to what training begins with as zeros: a trained network has none."""
    import torch

    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            if not parameter.any():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
