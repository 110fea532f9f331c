"""A saved model speaks as before, compressed or not, and is opened without FP32 weights."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress.artifact import LayerRecord, Manifest, Source, read_manifest
from tts_compress.errors import ArtifactError, ModelError
from tts_compress.models.base import Prompt
from tts_compress.models.f5.files import F5Options
from tts_compress.models.f5.model import F5Model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TEXT = "hello there."


def _compressed(model: F5Model) -> F5Model:
    """Return the model with the blocks' layers, and one of the vocoder, in fewer bits."""
    import torch

    from tts_compress.torch.layers.base import build_layer, layer_state
    from tts_compress.torch.layers.geometry import Geometry, operator_of
    from tts_compress.torch.layers.module_surgery import copy_sharing_tensors, replace_module

    root = copy_sharing_tensors(model.root())
    layers = []
    for name, module in list(root.named_modules()):
        operator = operator_of(module)
        blocks = name.startswith("transformer.transformer_blocks.")
        if operator is None or not (blocks or name == "vocoder.backbone.embed"):
            continue
        assert isinstance(module.weight, torch.Tensor)
        layer = LayerRecord(
            module=name,
            operator=operator,
            weights="int8",
            activations="dynamic" if blocks else "none",
            parameters=module.weight.numel(),
        )
        layers.append(layer)
        kind = (layer.weights, layer.activations)
        built = build_layer(Geometry.of(module), *kind, layer_state(module, *kind))
        replace_module(root, name, built)
    layers.append(
        LayerRecord(
            module="transformer.proj_out",
            operator="Linear",
            weights="float16",
            activations="none",
            parameters=6400,
        )
    )
    manifest = Manifest(
        family="f5-tts",
        scheme="int8-dynamic",
        source=Source(spec=model.spec, sha256="0" * 64, size_bytes=1),
        recipe={},
        layers=tuple(layers),
        counts={},
        calibration=None,
        seed=0,
        environment={},
    )
    return model.with_root(root, manifest)


@pytest.fixture(scope="module")
def compressed(tiny_f5: F5Model) -> F5Model:
    return _compressed(tiny_f5)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory, compressed: F5Model) -> Path:
    return compressed.save(tmp_path_factory.mktemp("artifact") / "small")


def test_an_original_is_saved_and_speaks_the_same(tiny_f5: F5Model, tmp_path: Path) -> None:
    folder = tiny_f5.save(tmp_path / "copy")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.yaml",
        "model.safetensors",
        "reference.txt",
        "reference.wav",
        "vocab.txt",
        "vocoder.yaml",
    ]
    saved = F5Model.open(str(folder), "saved")
    assert saved.manifest is None
    assert saved.options == tiny_f5.options  # or it would be judged by other steps
    spoken = saved.synthesize(_TEXT, seed=0)
    assert np.array_equal(spoken.samples, tiny_f5.synthesize(_TEXT, seed=0).samples)
    again = saved.save(tmp_path / "again")
    for path in folder.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name
    with pytest.raises(ArtifactError, match="exists"):
        saved.save(folder)


def test_a_compressed_model_is_saved_and_speaks_the_same(
    tiny_f5: F5Model, compressed: F5Model, artifact: Path
) -> None:
    from safetensors import safe_open

    manifest = read_manifest(artifact)
    assert manifest.size_bytes == (artifact / "model.safetensors").stat().st_size
    assert set(manifest.files) == {p.name for p in artifact.iterdir()} - {"manifest.json"}
    opened = F5Model.open(str(artifact), "small", manifest)
    assert opened.manifest == manifest
    assert opened.files().weights == (artifact / "model.safetensors",)
    assert artifact / "vocoder.yaml" in opened.files().settings
    with safe_open(artifact / "model.safetensors", framework="np") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert kinds["transformer.proj_out.weight"] == "F16"
    assert kinds["transformer.norm_out.linear.weight"] == "F32"
    assert kinds["transformer.transformer_blocks.0.attn.to_q.weight"] == "I8"
    spoken = opened.synthesize(_TEXT, seed=0).samples
    # One output layer is rounded to 16 bits in the file only.
    in_memory = compressed.synthesize(_TEXT, seed=0).samples
    original = tiny_f5.synthesize(_TEXT, seed=0).samples
    assert np.abs(spoken - in_memory).max() < 0.1 * np.abs(spoken - original).max()
    again = F5Model.open(str(artifact), "s")
    assert np.array_equal(spoken, again.synthesize(_TEXT, seed=0).samples)
    runtime = opened.open_runtime(threads=1)
    assert len(runtime.speak(_TEXT).samples) == len(spoken)


def test_components_of_an_artifact_count_what_the_file_holds(
    tiny_f5: F5Model, artifact: Path
) -> None:
    before, after = tiny_f5.components(), F5Model.open(str(artifact), "small").components()
    for name, component in before.items():
        assert after[name].parameters == component.parameters
        assert after[name].operators == component.operators
    blocks = after["transformer.transformer_blocks"]
    assert blocks.parameters < blocks.size_bytes < 1.1 * blocks.parameters
    assert after["transformer.proj_out"].size_bytes == 2 * 6400
    assert after["transformer.time_embed"].size_bytes == 4 * 20480


def test_an_artifact_is_opened_without_allocating_its_fp32_weights(
    tiny_f5: F5Model, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tts_compress.torch.layers import checkpoint

    seen: list[Any] = []
    restore = checkpoint.restore_root

    def spy(root: Any, layers: Any, path: Path) -> Any:
        seen.extend((name, p.device.type) for name, p in root.named_parameters())
        seen.extend((name, b.device.type) for name, b in root.named_buffers())
        return restore(root, layers, path)

    monkeypatch.setattr(checkpoint, "restore_root", spy)
    root = F5Model.open(str(artifact), "small").root()
    assert {kind for name, kind in seen if name in dict(tiny_f5.root().named_parameters())} == {
        "meta"
    }
    tensors = [*root.named_parameters(), *root.named_buffers()]
    assert {tensor.device.type for _, tensor in tensors} == {"cpu"}
    computed = dict(tiny_f5.root().named_buffers())  # rotations, windows, filters
    assert len(computed) >= 5
    found = dict(root.named_buffers())
    for name, tensor in computed.items():
        assert found[name].equal(tensor), name


def test_an_altered_artifact_is_refused(artifact: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(artifact, copy)
    (copy / "reference.txt").write_text("something else")
    with pytest.raises(ArtifactError, match=r"'reference.txt' was altered"):
        F5Model.open(str(copy), "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"family": "piper", "files": {}}))
    with pytest.raises(ModelError, match="artifact of family 'piper'"):
        F5Model.open(str(copy), "copy")


def test_weights_of_another_model_are_refused(
    tiny_f5: F5Model, make_f5_dir: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_f5.save(tmp_path / "saved")
    deeper = F5Model.open(str(make_f5_dir(tmp_path / "other", depth=3)), "other")
    other = deeper.save(tmp_path / "o")
    (other / "model.safetensors").replace(folder / "model.safetensors")
    with pytest.raises(ArtifactError, match=r"model\.safetensors"):
        F5Model.open(str(folder), "mixed").root()


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_a_recording_is_kept_as_16_bits(tiny_f5: F5Model, tmp_path: Path, subtype: str) -> None:
    import soundfile

    wave, rate = soundfile.read(tiny_f5.prompt.audio)
    wave = wave * 2 ** np.floor(-np.log2(np.abs(wave).max()))  # loud, and exact in 16 bits
    assert np.abs(wave).max() > 0.5
    path = tmp_path / "prompt.wav"
    soundfile.write(path, np.stack([wave, wave], axis=1), rate, subtype=subtype)
    model = tiny_f5.with_prompt(Prompt(audio=path, text="one two three."))
    saved = F5Model.open(str(model.save(tmp_path / "saved")), "saved")
    kept, _ = soundfile.read(saved.prompt.audio)
    assert np.array_equal(kept[:, 0], wave)
    assert saved.prompt.text == "one two three."
    assert np.array_equal(
        saved.synthesize(_TEXT, seed=0).samples, model.synthesize(_TEXT, seed=0).samples
    )


def test_a_model_without_a_recording_is_saved_without(tiny_f5: F5Model, tmp_path: Path) -> None:
    silent = replace(tiny_f5.with_options(F5Options(speed=1.5)), prompt=Prompt())
    saved = F5Model.open(str(silent.save(tmp_path / "silent")), "silent")
    assert saved.options == replace(F5Options(), speed=1.5)
    assert saved.describe()["recording"] == "none"
    for refused in (
        lambda: saved.synthesize(_TEXT, seed=0),
        lambda: saved.open_runtime(threads=1),
    ):
        with pytest.raises(ModelError, match=r"no recording to speak by; put reference\.wav"):
            refused()
