"""Parler-TTS on disk: errors in files and texts, and their messages."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.damage import alter, edit_weights, pickle_weights, remove, write
from tts_compress.errors import ModelError, TextError
from tts_compress.models.parler.model import ParlerModel, ParlerOptions, load_tokenizers

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
    found = load_tokenizers(tiny_parler_dir, config)
    assert (len(found.text), len(found.description)) == (98, 60)
    same = load_tokenizers(tiny_parler_dir, {"vocab_size": 98, "text_encoder": {"vocab_size": 98}})
    assert same.description is same.text
