"""Tiny seeded voices of transformers, made by its own classes and saved as it saves them."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.models import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SYMBOLS = " abcdefghijklmnopqrstuvwxyz'-"


@pytest.fixture(scope="session")
def transformers() -> Any:
    """Return the package; tests skip where it, or what it needs to make models, is missing."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    package = pytest.importorskip("transformers", minversion="5.0")
    torch.set_num_threads(1)  # networks this small only wait for a second one
    return package


@pytest.fixture(scope="session")
def make_vits(tmp_path_factory: pytest.TempPathFactory, transformers: Any) -> Callable[..., Path]:
    """Return a function that writes a tiny VITS; keyword arguments change its configuration."""
    import torch

    def make(name: str, *, tokens: dict[str, Any] | None = None, **changes: Any) -> Path:
        torch.manual_seed(0)
        sizes = {
            "vocab_size": len(SYMBOLS),
            "speaking_rate": 0.3,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "ffn_dim": 64,
            "flow_size": 32,
            "spectrogram_bins": 33,
            "upsample_initial_channel": 128,
            "upsample_rates": [8, 8],
            "upsample_kernel_sizes": [16, 16],
            "resblock_kernel_sizes": [3, 5],
            "resblock_dilation_sizes": [[1, 3], [1, 3]],
            "prior_encoder_num_flows": 2,
            "posterior_encoder_num_wavenet_layers": 2,
        }
        model = transformers.VitsModel(transformers.VitsConfig(**sizes | changes)).eval()
        directory = tmp_path_factory.mktemp("vits") / name
        directory.mkdir()
        ids = {symbol: number for number, symbol in enumerate(SYMBOLS)}
        (directory / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
        settings = {"language": "eng", "phonemize": False, "pad_token": " "} | (tokens or {})
        tokenizer = transformers.VitsTokenizer(str(directory / "vocab.json"), **settings)
        tokenizer.save_pretrained(directory)
        _make_audible(model, tokenizer("a few words", return_tensors="pt")["input_ids"])
        model.save_pretrained(directory)
        return directory

    return make


def _make_audible(model: Any, ids: Any) -> None:
    """Scale the last convolution until the audio does not clip."""
    import torch

    levels: list[float] = []
    hook = model.decoder.conv_post.register_forward_hook(
        lambda _module, _inputs, found: levels.append(float(found.square().mean().sqrt()))
    )
    with torch.no_grad():
        model(input_ids=ids)
        hook.remove()
        model.decoder.conv_post.weight *= 0.2 / levels[0]


@pytest.fixture(scope="session")
def vits_dir(make_vits: Callable[..., Path]) -> Path:
    """Return the folder of a voice of one speaker; do not write into it."""
    return make_vits("tiny")


@pytest.fixture(scope="session")
def vits(vits_dir: Path) -> Any:
    """Return that voice, loaded; it is never modified."""
    return load(f"transformers:{vits_dir}")


@pytest.fixture(scope="session")
def choir(make_vits: Callable[..., Path]) -> Any:
    """Return a voice of three speakers, loaded."""
    return load(f"transformers:{make_vits('choir', num_speakers=3, speaker_embedding_size=8)}")


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a folder and changes settings in a JSON file of the copy."""

    def edit(directory: Path, name: str, **changes: Any) -> Path:
        copied = shutil.copytree(directory, tmp_path / "edited")
        settings = json.loads((copied / name).read_text(encoding="utf-8"))
        (copied / name).write_text(json.dumps(settings | changes), encoding="utf-8")
        return copied

    return edit
