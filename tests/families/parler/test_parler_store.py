"""Parler-TTS artifacts: saved, opened without memory for FP32, spoken."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.conformance import compressed
from tts_compress import find_recipe
from tts_compress.artifact import read_manifest
from tts_compress.models.base import Prompt
from tts_compress.models.parler.model import (
    ParlerModel,
    ParlerOptions,
    build_skeleton,
    load_packages,
)

TEXT = "please call again at ten"


def _reopened(model: ParlerModel, directory: Path) -> ParlerModel:
    saved = model.save(directory)
    return ParlerModel.open(str(saved), "again", read_manifest(saved))


def test_an_original_is_saved_in_the_official_format(
    tiny_parler: ParlerModel, tmp_path: Path
) -> None:
    saved = tiny_parler.save(tmp_path / "copy")
    assert not (saved / "manifest.json").exists()
    again = ParlerModel.open(str(saved), "copy")
    before = tiny_parler.synthesize(TEXT, seed=1).samples
    np.testing.assert_array_equal(again.synthesize(TEXT, seed=1).samples, before)
    parler, transformers = load_packages()
    official = parler.ParlerTTSForConditionalGeneration.from_pretrained(saved)
    for name, tensor in official.state_dict().items():
        assert tensor.equal(tiny_parler.root().state_dict()[name]), name
    assert len(transformers.AutoTokenizer.from_pretrained(saved)) == 98


def test_an_artifact_keeps_its_description_and_is_in_the_official_format(
    tiny_parler: ParlerModel, tmp_path: Path
) -> None:
    small = compressed(tiny_parler.with_prompt(Prompt(description="a loud child")), "int8")
    again = _reopened(small, tmp_path / "int8")
    assert again.description == "a loud child"
    spoken = again.open_runtime(threads=1).speak(TEXT)
    assert np.sqrt(np.square(spoken.samples).mean()) > 0.02
    _, transformers = load_packages()
    assert len(transformers.AutoTokenizer.from_pretrained(tmp_path / "int8")) == 98
    whole, part = tiny_parler.components(), again.components()
    for name, share in {"text_encoder": 0.75, "decoder": 0.6, "audio_encoder": 0.95}.items():
        assert part[name].parameters == whole[name].parameters
        assert part[name].operators == whole[name].operators
        assert part[name].size_bytes < share * whole[name].size_bytes


def test_a_compressed_layer_is_counted_by_what_a_file_keeps(tiny_parler: ParlerModel) -> None:
    shipped = find_recipe("parler-tts", "int8-weight-only")
    rule = shipped.component[0].model_copy(
        update={"match": "audio_encoder.decoder.conv1", "operators": ("Conv1d",)}
    )
    alone = shipped.model_copy(update={"component": (rule,)})
    small = compressed(tiny_parler, "int8-weight-only", recipe=alone)
    whole, part = tiny_parler.components()["audio_encoder"], small.components()["audio_encoder"]
    weights, channels = 32 * 128 * 7, 32
    assert part.size_bytes == whole.size_bytes - 3 * weights + 4 * channels  # codes and scales


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_embeddings": True, "num_key_value_heads": 2},
        {"cross": True, "use_fused_lm_heads": True},
        {"encoder_width": 48},
    ],
    ids=["rotary positions", "text by cross-attention", "projected description"],
)
def test_kinds_of_decoders(
    make_parler_dir: Callable[..., Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Each computes something the others do not have, which the skeleton must have, too."""
    model = ParlerModel.open(str(make_parler_dir("kind", **changes)), "kind")
    tokens = model.generate_tokens(TEXT, seed=None)
    scores = model.logits(TEXT, tokens)
    scores[..., 64] = -np.inf  # sampling's rules decide when speech may end
    said = scores.argmax(axis=-1)[tokens.chosen]
    assert (said == tokens.ids[1:][tokens.chosen]).mean() > 0.99
    assert ("enc_to_dec_proj" in model.components()) == ("encoder_width" in changes)
    small = compressed(model, "int8")
    before = small.synthesize(TEXT, seed=0).samples
    again = _reopened(small, tmp_path / "int8")
    np.testing.assert_array_equal(again.synthesize(TEXT, seed=0).samples, before)


def test_a_skeleton_takes_no_memory(make_parler_dir: Callable[..., Path]) -> None:
    skeleton: Any = build_skeleton(make_parler_dir("kind", rope_embeddings=True))
    assert {parameter.device.type for parameter in skeleton.parameters()} == {"meta"}
    buffers = dict(skeleton.named_buffers())
    assert any("inv_freq" in name for name in buffers)
    assert {buffer.device.type for buffer in buffers.values()} == {"cpu"}
    assert skeleton.generation_config.max_length == 40
    assert not skeleton.training


def test_the_older_codec(wrapped_dir: Path, tmp_path: Path) -> None:
    """Its weights carry weight norm, and its codes have one dimension more."""
    import torch

    short = ParlerOptions(max_length=20)
    model = ParlerModel.open(str(wrapped_dir), "wrapped").with_options(short)
    audio = model.synthesize(TEXT, seed=0)
    assert np.sqrt(np.square(audio.samples).mean()) > 0.02
    codec = model.components()["audio_encoder"]
    kinds = torch.nn.Conv1d | torch.nn.ConvTranspose1d | torch.nn.Embedding
    held = model.root().get_submodule("audio_encoder").modules()
    weights: list[Any] = [layer.weight for layer in held if isinstance(layer, kinds)]
    assert codec.operators == {"Conv1d": 74, "ConvTranspose1d": 4, "Embedding": 9}
    assert codec.parameters == sum(weight.numel() for weight in weights)

    small = compressed(model, "int8")
    before = small.synthesize(TEXT, seed=0).samples
    assert len(before) == len(audio.samples)
    again = _reopened(small, tmp_path / "int8").with_options(short)
    root: Any = again.root()
    assert root.use_4dim_audio_codes
    np.testing.assert_array_equal(again.synthesize(TEXT, seed=0).samples, before)
    assert again.components()["audio_encoder"].parameters == codec.parameters


def test_a_description_can_have_its_own_tokenizer(tiny_parler_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "two"
    shutil.copytree(tiny_parler_dir, source)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(source / name, source / f"description_{name}")
    other = json.loads((source / "description_tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = other["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (source / "description_tokenizer.json").write_text(json.dumps(other), encoding="utf-8")
    model = ParlerModel.open(str(source), "two")
    one = ParlerModel.open(str(tiny_parler_dir), "one").with_prompt(
        Prompt(description="b cblm low voice")
    )
    spoken = model.synthesize(TEXT, seed=0).samples
    np.testing.assert_array_equal(spoken, one.synthesize(TEXT, seed=0).samples)
    saved = model.save(tmp_path / "saved")
    again = ParlerModel.open(str(saved), "again").synthesize(TEXT, seed=0).samples
    np.testing.assert_array_equal(again, spoken)


@pytest.mark.parametrize("changed", [False, True])
def test_a_table_of_positions_is_in_the_file_only_if_it_is_no_computed_one(
    tiny_parler: ParlerModel, tmp_path: Path, changed: bool
) -> None:
    from tts_compress.torch.layers.checkpoint import TensorFile
    from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

    root: Any = copy_sharing_tensors(tiny_parler.root())
    table = root.decoder.model.decoder.embed_positions
    if changed:
        table.weights = type(table.weights)(table.weights * 1.5, requires_grad=False)
    model = compressed(tiny_parler.with_root(root, None), "int8-weight-only")
    saved = model.save(tmp_path / "saved")
    names = TensorFile(saved / "model.safetensors").names
    assert ("decoder.model.decoder.embed_positions.weights" in names) == changed
    again = ParlerModel.open(str(saved), str(saved), read_manifest(saved))
    options = ParlerOptions(max_length=40)
    first, second = (m.with_options(options).synthesize(TEXT, seed=1) for m in (model, again))
    assert np.array_equal(first.samples, second.samples)
    # The loaded model keeps its own.
    tiny_parler.root().get_parameter("decoder.model.decoder.embed_positions.weights")


def test_the_codecs_activations_are_the_official_ones(
    tiny_parler: ParlerModel, wrapped_dir: Path
) -> None:
    """Both packages have the same formula; what replaces it walks through memory in blocks."""
    import torch

    from tts_compress.torch.layers.module_surgery import (
        BlockedSnake,
        copy_sharing_tensors,
        normalize,
    )

    for model in (tiny_parler, ParlerModel.open(str(wrapped_dir), "older")):
        codec = model.root().get_submodule("audio_encoder")
        ours = normalize(copy_sharing_tensors(codec))
        checked = 0
        for name, replaced in ours.named_modules():
            if isinstance(replaced, BlockedSnake):
                official = codec.get_submodule(name)
                signal = torch.randn(2, replaced.alpha.shape[1], 50)
                with torch.inference_mode():
                    torch.testing.assert_close(replaced(signal), official(signal))
                checked += 1
        assert checked > 0
