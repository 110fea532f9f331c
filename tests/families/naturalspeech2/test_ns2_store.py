"""A saved model speaks as before, needs no file of the original, and never becomes FP32."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress.artifact import read_manifest
from tts_compress.compression import compress
from tts_compress.errors import ArtifactError, ModelError
from tts_compress.models.naturalspeech2.files import CODEC
from tts_compress.models.naturalspeech2.model import NaturalSpeech2Model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TEXT = "good day."


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory, tiny_ns2: NaturalSpeech2Model) -> Path:
    small = compress(tiny_ns2, "int8")
    with pytest.raises(ModelError, match=r"call save\(\) first"):
        small.files()
    return small.save(tmp_path_factory.mktemp("artifact") / "small")


def _names(path: Path) -> set[str]:
    from tts_compress.torch.layers.checkpoint import TensorFile

    return set(TensorFile(path / "model.safetensors").names)


def test_an_original_is_saved_and_speaks_the_same(
    tiny_ns2: NaturalSpeech2Model, tmp_path: Path
) -> None:
    folder = tiny_ns2.save(tmp_path / "copy")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["model.safetensors", "reference.wav", "settings.json"]
    saved = NaturalSpeech2Model.open(str(folder), "saved")
    assert saved.manifest is None
    assert saved.options.inference_step == 4  # or it would be judged by other steps
    spoken = saved.synthesize(_TEXT, seed=0).samples
    assert np.array_equal(spoken, tiny_ns2.synthesize(_TEXT, seed=0).samples)
    again = saved.save(tmp_path / "again")
    for path in folder.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name
    with pytest.raises(ArtifactError, match="exists"):
        saved.save(folder)
    changed = NaturalSpeech2Model.open(f"{folder}?inference_step=2", "saved")
    assert changed.options.inference_step == 2


def test_an_artifact_holds_each_tensor_once_and_no_training(artifact: Path) -> None:
    names = _names(artifact)
    assert set(read_manifest(artifact).files) == {p.name for p in artifact.iterdir()} - {
        "manifest.json"
    }
    assert any(name.startswith("quantizer.") for name in names)
    assert not any(name.startswith("codec.quantizer.") for name in names)
    assert not any(name.endswith(("embed_avg", "cluster_size", ".pe")) for name in names)
    assert not any(name.endswith(("weight_g", "weight_v")) for name in names)
    assert "prior_encoder.encoder.enc_emb_tokens.weight" not in names  # held twice
    assert "prior_encoder.enc_emb_tokens.weight" in names


def test_an_artifact_is_restored_without_fp32_weights_or_the_codecs_file(
    tiny_ns2: NaturalSpeech2Model,
    artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from tts_compress.torch.layers import checkpoint

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    seen: list[str] = []
    restore = checkpoint.restore_root

    def spy(root: Any, layers: Any, path: Path) -> Any:
        seen.extend(p.device.type for p in root.parameters())
        return restore(root, layers, path)

    monkeypatch.setattr(checkpoint, "restore_root", spy)
    model = NaturalSpeech2Model.open(str(artifact), "small", read_manifest(artifact))
    root = model.root()
    assert set(seen) == {"meta"}
    tensors = [*root.named_parameters(), *root.named_buffers()]
    assert {tensor.device.type for _, tensor in tensors} == {"cpu"}
    inference = model.inference
    assert inference.codec.quantizer is inference.model.quantizer
    assert inference.codec.bandwidth == 12.0
    original = tiny_ns2.inference
    assert inference.symbols == original.symbols
    for name, tensor in original.model.named_buffers():
        if name.endswith((".embed", ".pe", "pitch_bins")):
            assert inference.model.get_buffer(name).equal(tensor)


def test_an_altered_artifact_is_refused(artifact: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(artifact, copy)
    with (copy / "settings.json").open("a") as file:
        file.write(" ")
    with pytest.raises(ArtifactError, match=r"'settings.json' was altered"):
        NaturalSpeech2Model.open(str(copy), "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"family": "piper", "files": {}}))
    with pytest.raises(ModelError, match="artifact of family 'piper'"):
        NaturalSpeech2Model.open(str(copy), "copy")


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
