"""Parler-TTS on disk: errors in files and texts, and their messages."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.conformance import compressed
from tests.families.damage import alter, edit_weights, pickle_weights, remove, write
from tts_compress.artifact import read_manifest
from tts_compress.errors import ModelError, TextError
from tts_compress.models.base import Prompt
from tts_compress.models.parler.model import (
    ParlerModel,
    ParlerOptions,
    build_skeleton,
    load_packages,
    load_tokenizers,
)

TEXT = "please call again at ten"


def _index(content: bytes) -> Callable[[Path], None]:
    """Return a function that replaces the weights by an index of shards."""

    def put(directory: Path) -> None:
        (directory / "model.safetensors").rename(directory.with_name("outside.safetensors"))
        (directory / "model.safetensors.index.json").write_bytes(content)

    return put


def _tokens(count: int) -> Callable[[Path], None]:
    """Return a function that changes the tokenizer's number of tokens."""

    def change(directory: Path) -> None:
        path = directory / "tokenizer.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        kept = dict(list(settings["model"]["vocab"].items())[:count])
        settings["model"]["vocab"] = kept | {f"t{i}": i for i in range(len(kept), count)}
        path.write_text(json.dumps(settings), encoding="utf-8")

    return change


_HEAD = "decoder.lm_heads.0.weight"

_DAMAGE = [
    ("no configuration", remove("config.json"), "holds no config.json"),
    ("no generation settings", remove("generation_config.json"), "no generation_config.json"),
    ("no weights", remove("model.safetensors"), "no weights instead of model.safetensors"),
    ("pickled weights", pickle_weights, "only pickled weights"),
    ("configuration is no JSON", write("config.json", b"{"), "cannot read"),
    ("another system", alter("config.json", model_type="bark"), "of type 'bark'"),
    ("no codec", alter("config.json", audio_encoder=None), "says nothing about audio_encoder"),
    ("no rate", alter("config.json", audio_encoder__sampling_rate=0), "sampling rate 0"),
    ("unknown codec", alter("config.json", audio_encoder__model_type="x"), "cannot be loaded"),
    ("truncated weights", write("model.safetensors", b"12345678"), "cannot be loaded"),
    ("a wider network", alter("config.json", decoder__hidden_size=48), "cannot be loaded"),
    ("a weight is missing", edit_weights(lambda t: t.pop(_HEAD)), "lacks 1 weights"),
    ("not finite", edit_weights(lambda t: t[_HEAD].fill_(float("nan"))), "not finite"),
    ("ends at once", alter("generation_config.json", max_length=4), "max_length 4"),
    ("no tokenizer", remove("tokenizer.json"), "no tokenizer can be read"),
    ("broken tokenizer", write("tokenizer.json", b"[]"), "no tokenizer can be read"),
    ("empty description", write("description.txt", b" \n"), "is empty"),
    ("description in another encoding", write("description.txt", b"\xff\xfe"), "cannot read"),
    ("a tokenizer too large", _tokens(129), "has 129 tokens, and the model knows 128"),
    ("an index of nothing", _index(b"{}"), "cannot read"),
    ("an empty index", _index(b'{"weight_map": {}}'), "names no files"),
    (
        "an index that leads out",
        _index(b'{"weight_map": {"a": "../outside.safetensors"}}'),
        "plain",
    ),
    ("an index of numbers", _index(b'{"weight_map": {"a": 3}}'), "plain file name"),
]


def _use(directory: Path) -> None:
    model = ParlerModel.open(str(directory), "damaged")
    assert model.sample_rate
    model.synthesize(TEXT, seed=0)


@pytest.mark.parametrize(
    ("damage", "reason"), [d[1:] for d in _DAMAGE], ids=[d[0] for d in _DAMAGE]
)
def test_what_is_wrong_with_a_folder_is_said(
    tiny_parler_dir: Path, tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    directory = tmp_path / "damaged"
    shutil.copytree(tiny_parler_dir, directory)
    damage(directory)
    with pytest.raises(ModelError, match=reason) as found:
        _use(directory)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "location", ["nowhere", "/no/such/model", "a/b/c", "../nowhere", "no name/at all"]
)
def test_what_is_no_model_is_said(location: str) -> None:
    with pytest.raises(ModelError, match=r"no Parler-TTS model at.*parler-tts-mini-v1"):
        ParlerModel.open(location, location)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "nothing to speak"),
        (" \n", "nothing to speak"),
        ("?!…", "nothing to speak"),
        ("a\0b", "null characters"),
        ("a\ud800b", "surrogate"),
        ("word " * 200, r"has 1001 tokens and the model has room for 216 beside 40 steps"),
    ],
)
def test_what_cannot_be_spoken_is_said(tiny_parler: ParlerModel, text: str, reason: str) -> None:
    with pytest.raises(TextError, match=reason):
        tiny_parler.synthesize(text, seed=0)


def test_the_longest_text_is_spoken(tiny_parler: ParlerModel) -> None:
    assert len(tiny_parler.synthesize("a" * 215, seed=0).samples) > 0  # and one end token
    with pytest.raises(TextError, match="has 217 tokens"):
        tiny_parler.synthesize("a" * 216, seed=0)


def test_the_longest_text_depends_on_the_longest_speech(tiny_parler: ParlerModel) -> None:
    longer = tiny_parler.with_options(ParlerOptions(max_length=250))
    with pytest.raises(TextError, match="room for 6 beside 250 steps"):
        longer.synthesize(TEXT, seed=0)


def test_shards_are_the_models_files(tiny_parler: ParlerModel, tmp_path: Path) -> None:
    saved = tiny_parler.save(tmp_path / "shards")
    (saved / "model.safetensors").unlink()
    root: Any = tiny_parler.root()
    root.save_pretrained(saved, max_shard_size="1MB")
    model = ParlerModel.open(str(saved), "shards")
    assert len(model.files().weights) > 1
    spoken = model.synthesize(TEXT, seed=0).samples
    np.testing.assert_array_equal(spoken, tiny_parler.synthesize(TEXT, seed=0).samples)
    model.files().weights[0].unlink()
    with pytest.raises(ModelError, match="which is not there"):
        ParlerModel.open(str(saved), "shards")


@pytest.mark.slow
def test_the_published_form_of_the_older_codec(wrapped_dir: Path, tmp_path: Path) -> None:
    """Published models name it `dac`, as the newer one, and its weights by the old weight norm."""
    from safetensors.torch import load_file, save_file

    directory = tmp_path / "published"
    shutil.copytree(wrapped_dir, directory)
    alter("config.json", transformers_version="4.43.3", audio_encoder__model_type="dac")(directory)
    file = directory / "model.safetensors"
    old = {"parametrizations.weight.original0": "weight_g"}
    old["parametrizations.weight.original1"] = "weight_v"
    tensors = {}
    for name, tensor in load_file(file).items():
        renamed = name
        for new, published in old.items():
            renamed = renamed.replace(new, published)
        tensors[renamed] = tensor
    assert any(name.endswith("weight_g") for name in tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    spoken = ParlerModel.open(str(directory), "published").synthesize(TEXT, seed=0).samples
    same = ParlerModel.open(str(wrapped_dir), "wrapped").synthesize(TEXT, seed=0).samples
    np.testing.assert_array_equal(spoken, same)
    file.unlink()


def test_a_large_tokenizer_of_texts_is_not_one_of_descriptions(
    tiny_parler_dir: Path, tmp_path: Path
) -> None:
    """Models of many languages have such; their settings name the text encoder's own."""
    other = tmp_path / "encoder"
    shutil.copytree(tiny_parler_dir, other)
    _tokens(60)(other)
    config: dict[str, Any] = {"vocab_size": 128, "text_encoder": {"vocab_size": 64}}
    with pytest.raises(ModelError, match="has 98 tokens, more than the text encoder"):
        load_tokenizers(tiny_parler_dir, config)
    config["text_encoder"]["_name_or_path"] = str(other)
    assert [len(each) for each in load_tokenizers(tiny_parler_dir, config)] == [98, 60]
    same = load_tokenizers(tiny_parler_dir, {"vocab_size": 98, "text_encoder": {"vocab_size": 98}})
    assert same[0] is same[1]


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
