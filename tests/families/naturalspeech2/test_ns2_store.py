"""A saved model holds each tensor once, and needs no file of the original."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tts_compress.artifact import read_manifest
from tts_compress.compression import compress
from tts_compress.errors import ArtifactError
from tts_compress.models.naturalspeech2.model import NaturalSpeech2Model
from tts_compress.models.naturalspeech2.network import CODEC

_TEXT = "good day."


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory, tiny_ns2: NaturalSpeech2Model) -> Path:
    return compress(tiny_ns2, "int8").save(tmp_path_factory.mktemp("artifact") / "small")


def _names(path: Path) -> set[str]:
    from tts_compress.torch.layers.checkpoint import TensorFile

    return set(TensorFile(path / "model.safetensors").names)


def test_an_artifact_holds_each_tensor_once_and_no_training(artifact: Path) -> None:
    names = _names(artifact)
    assert any(name.startswith("quantizer.") for name in names)
    assert not any(name.startswith("codec.quantizer.") for name in names)
    assert not any(name.endswith(("embed_avg", "cluster_size", ".pe")) for name in names)
    assert not any(name.endswith(("weight_g", "weight_v")) for name in names)
    assert "prior_encoder.encoder.enc_emb_tokens.weight" not in names  # held twice
    assert "prior_encoder.enc_emb_tokens.weight" in names


def test_an_artifact_is_restored_without_the_codecs_file(
    tiny_ns2: NaturalSpeech2Model,
    artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    inference = NaturalSpeech2Model.open(str(artifact), "small").inference
    assert inference.codec.quantizer is inference.model.quantizer
    assert inference.codec.bandwidth == 12.0
    original = tiny_ns2.inference
    assert inference.symbols == original.symbols
    for name, tensor in original.model.named_buffers():
        if name.endswith((".embed", ".pe", "pitch_bins")):
            assert inference.model.get_buffer(name).equal(tensor)


def test_weights_of_another_model_are_refused(
    tiny_ns2: NaturalSpeech2Model, tmp_path: Path
) -> None:
    folder = tiny_ns2.save(tmp_path / "saved")
    settings = json.loads((folder / "settings.json").read_text())
    settings["model"]["diffusion"]["wavenet"]["num_layers"] = 7
    (folder / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(ArtifactError, match=r"model\.safetensors"):
        NaturalSpeech2Model.open(str(folder), "mixed").root()


def test_a_codec_of_its_own_tables_keeps_them(
    make_ns2_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """A checkpoint whose tables were trained further has others than the published codec."""
    import torch

    folder = make_ns2_dir(tmp_path / "tiny")
    weights = torch.load(folder / CODEC, weights_only=True)
    weights["quantizer.vq.layers.0._codebook.embed"] += 0.1
    torch.save(weights, folder / CODEC)
    model = NaturalSpeech2Model.open(f"{folder}?inference_step=2", "other")
    inference = model.inference
    assert inference.codec.quantizer is not inference.model.quantizer
    saved = compress(model, "int8-weight-only").save(tmp_path / "small")
    assert any(name.startswith("codec.quantizer.") for name in _names(saved))
    again = NaturalSpeech2Model.open(str(saved), "small", read_manifest(saved))
    table = again.root().get_buffer("codec.quantizer.vq.layers.0._codebook.embed")
    assert table.equal(weights["quantizer.vq.layers.0._codebook.embed"])
    assert np.isfinite(again.synthesize(_TEXT, seed=0).samples).all()
