"""Parler-TTS on disk: artifacts, skeletons without memory, and what is wrong with files."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress.artifact import LayerRecord, Manifest, Source, read_manifest
from tts_compress.errors import ArtifactError, ModelError, TextError
from tts_compress.models.base import Prompt
from tts_compress.models.parler import ParlerModel, open_parler, open_parler_artifact
from tts_compress.models.parler.network import build_skeleton
from tts_compress.models.parler.package import load_packages
from tts_compress.models.parler.speech import ParlerOptions
from tts_compress.models.parler.tokenizers import load_tokenizers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TEXT = "please call again at ten"


def _manifest(layers: tuple[LayerRecord, ...]) -> Manifest:
    return Manifest(
        family="parler-tts",
        scheme="int8-dynamic",
        source=Source(spec="parler-tts:tiny", sha256="0" * 64, size_bytes=1),
        recipe={},
        layers=layers,
        counts={},
        calibration=None,
        seed=0,
        environment={},
    )


def _compress(model: ParlerModel, prefixes: tuple[str, ...]) -> ParlerModel:
    """Return the model with every layer below the prefixes in eight bits."""
    from tts_compress.layers.base import Geometry, operator_of
    from tts_compress.layers.build import build_layer, kernel_choices, layer_state
    from tts_compress.layers.structure import prepare, replace_module, share

    root = prepare(share(model.root()))
    layers = []
    for name, module in list(root.named_modules()):
        operator = operator_of(module)
        if operator is None or not name.startswith(prefixes):
            continue
        dynamic = "none" if operator == "Embedding" else "dynamic"
        record = LayerRecord(
            module=name,
            operator=operator,
            weights="int8",
            activations=dynamic,
            parameters=sum(p.numel() for p in module.parameters() if p.dim() > 1),
        )
        state = layer_state(module, record)
        replace_module(
            root, name, build_layer(Geometry.of(module), record, state, kernel_choices())
        )
        layers.append(record)
    assert layers
    return model.with_root(root, _manifest(tuple(layers)))


def _reopened(model: ParlerModel, directory: Path) -> ParlerModel:
    saved = model.save(directory)
    return open_parler_artifact(saved, "again", read_manifest(saved))


def test_an_original_is_saved_in_the_official_format(
    tiny_parler: ParlerModel, tmp_path: Path
) -> None:
    saved = tiny_parler.save(tmp_path / "copy")
    assert not (saved / "manifest.json").exists()
    again = open_parler(str(saved), "copy")
    before = tiny_parler.synthesize(TEXT, seed=1).samples
    np.testing.assert_array_equal(again.synthesize(TEXT, seed=1).samples, before)
    parler, transformers = load_packages()
    official = parler.ParlerTTSForConditionalGeneration.from_pretrained(saved)
    for name, tensor in official.state_dict().items():
        assert tensor.equal(tiny_parler.root().state_dict()[name]), name
    assert len(transformers.AutoTokenizer.from_pretrained(saved)) == 98


def test_an_artifact_speaks_as_the_model_it_was_saved_from(
    tiny_parler: ParlerModel, tmp_path: Path
) -> None:
    small = _compress(tiny_parler, ("text_encoder.encoder", "decoder", "audio_encoder.decoder"))
    again = _reopened(small.with_prompt(Prompt(description="a loud child")), tmp_path / "int8")
    assert again.description == "a loud child"
    assert again.manifest is not None
    assert again.manifest.size_bytes == (tmp_path / "int8/model.safetensors").stat().st_size
    assert set(again.manifest.files) == {path.name for path in again.files().settings} | {
        "model.safetensors"
    }
    for seed in (None, 0):
        before = small.with_prompt(Prompt(description="a loud child")).synthesize(TEXT, seed=seed)
        np.testing.assert_array_equal(again.synthesize(TEXT, seed=seed).samples, before.samples)
    whole, part = tiny_parler.components(), again.components()
    # The description's tokens, the positions, and the codec's large encoder stay in FP32.
    for name, share in {"text_encoder": 0.75, "decoder": 0.6, "audio_encoder": 0.95}.items():
        assert part[name].parameters == whole[name].parameters
        assert part[name].operators == whole[name].operators
        assert part[name].size_bytes < share * whole[name].size_bytes
    assert part["embed_prompts"] == whole["embed_prompts"]


def test_a_compressed_layer_is_counted_by_what_a_file_keeps(tiny_parler: ParlerModel) -> None:
    small = _compress(tiny_parler, ("audio_encoder.decoder.conv1",))
    whole, part = tiny_parler.components()["audio_encoder"], small.components()["audio_encoder"]
    weights, channels = 32 * 128 * 7, 32
    assert part.size_bytes == whole.size_bytes - 3 * weights + 4 * channels  # codes and scales


def test_an_artifact_runs_in_official_generation(tiny_parler: ParlerModel, tmp_path: Path) -> None:
    import torch

    again = _reopened(_compress(tiny_parler, ("decoder.model",)), tmp_path / "int8")
    _, transformers = load_packages()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "int8")
    root: Any = again.root()
    torch.manual_seed(0)
    audio = root.generate(
        input_ids=tokenizer("a voice", return_tensors="pt").input_ids,
        prompt_input_ids=tokenizer(TEXT, return_tensors="pt").input_ids,
    )
    assert audio.shape[0] == 1
    assert audio.isfinite().all()
    assert float(audio.square().mean().sqrt()) > 0.02
    spoken = again.open_runtime(threads=1).speak(TEXT)
    assert np.sqrt(np.square(spoken.samples).mean()) > 0.02


def test_an_artifact_is_saved_again_byte_for_byte(tiny_parler: ParlerModel, tmp_path: Path) -> None:
    again = _reopened(_compress(tiny_parler, ("decoder.model",)), tmp_path / "one")
    again.save(tmp_path / "two")
    first, second = (read_manifest(tmp_path / name) for name in ("one", "two"))
    assert first == second


def test_nothing_is_overwritten_without_force(tiny_parler: ParlerModel, tmp_path: Path) -> None:
    small = _compress(tiny_parler, ("decoder.model",))
    small.save(tmp_path / "int8")
    with pytest.raises(ArtifactError, match="--force"):
        small.save(tmp_path / "int8")
    small.save(tmp_path / "int8", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["int8"]


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
    model = open_parler(str(make_parler_dir("kind", **changes)), "kind")
    tokens = model.generate_tokens(TEXT, seed=None)
    scores = model.logits(TEXT, tokens)
    scores[..., 64] = -np.inf  # sampling's rules say when speech may end
    said = scores.argmax(axis=-1)[tokens.chosen]
    assert (said == tokens.ids[1:][tokens.chosen]).mean() > 0.99
    assert ("enc_to_dec_proj" in model.components()) == ("encoder_width" in changes)
    small = _compress(model, ("decoder.model", "enc_to_dec_proj"))
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


@pytest.fixture(scope="module")
def wrapped_dir(make_parler_dir: Callable[..., Path]) -> Iterator[Path]:
    """Return a model with the older codec, whose network is full-size by design: 250 MB."""
    parler, _ = load_packages()
    codec = parler.DACConfig(num_codebooks=9, codebook_size=64, latent_dim=16)
    directory = make_parler_dir("wrapped", codec=codec)
    yield directory
    shutil.rmtree(directory)


def test_the_older_codec(wrapped_dir: Path, tmp_path: Path) -> None:
    """Its weights carry weight norm, and its codes have one dimension more."""
    import torch

    short = ParlerOptions(max_length=20)
    model = open_parler(str(wrapped_dir), "wrapped").with_options(short)
    audio = model.synthesize(TEXT, seed=0)
    assert np.sqrt(np.square(audio.samples).mean()) > 0.02
    codec = model.components()["audio_encoder"]
    kinds = torch.nn.Conv1d | torch.nn.ConvTranspose1d | torch.nn.Embedding
    held = model.root().get_submodule("audio_encoder").modules()
    weights: list[Any] = [layer.weight for layer in held if isinstance(layer, kinds)]
    assert codec.operators == {"Conv1d": 74, "ConvTranspose1d": 4, "Embedding": 9}
    assert codec.parameters == sum(weight.numel() for weight in weights)

    small = _compress(model, ("audio_encoder.model.decoder",))
    before = small.synthesize(TEXT, seed=0).samples
    assert len(before) == len(audio.samples)
    again = _reopened(small, tmp_path / "int8").with_options(short)
    root: Any = again.root()
    assert root.use_4dim_audio_codes
    np.testing.assert_array_equal(again.synthesize(TEXT, seed=0).samples, before)
    assert again.components()["audio_encoder"].parameters == codec.parameters


@pytest.mark.slow
def test_the_published_form_of_the_older_codec(wrapped_dir: Path, tmp_path: Path) -> None:
    """Published models name it `dac`, as the newer one, and its weights by the old weight norm."""
    from safetensors.torch import load_file, save_file

    directory = tmp_path / "published"
    shutil.copytree(wrapped_dir, directory)
    _set("config.json", transformers_version="4.43.3", audio_encoder__model_type="dac")(directory)
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
    spoken = open_parler(str(directory), "published").synthesize(TEXT, seed=0).samples
    same = open_parler(str(wrapped_dir), "wrapped").synthesize(TEXT, seed=0).samples
    np.testing.assert_array_equal(spoken, same)
    file.unlink()


def test_a_description_can_have_its_own_tokenizer(tiny_parler_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "two"
    shutil.copytree(tiny_parler_dir, source)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(source / name, source / f"description_{name}")
    other = json.loads((source / "description_tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = other["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (source / "description_tokenizer.json").write_text(json.dumps(other), encoding="utf-8")
    model = open_parler(str(source), "two")
    one = open_parler(str(tiny_parler_dir), "one").with_prompt(
        Prompt(description="b cblm low voice")
    )
    spoken = model.synthesize(TEXT, seed=0).samples
    np.testing.assert_array_equal(spoken, one.synthesize(TEXT, seed=0).samples)
    saved = model.save(tmp_path / "saved")
    again = open_parler(str(saved), "again").synthesize(TEXT, seed=0).samples
    np.testing.assert_array_equal(again, spoken)


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


def _set(name: str, **changes: Any) -> Callable[[Path], None]:
    """Return what changes settings in a JSON file; a dotted name reaches into a part."""

    def change(directory: Path) -> None:
        settings = json.loads((directory / name).read_text(encoding="utf-8"))
        for key, value in changes.items():
            part, _, inner = key.rpartition("__")
            (settings[part] if part else settings)[inner] = value
        (directory / name).write_text(json.dumps(settings), encoding="utf-8")

    return change


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / name).write_bytes(content)

    return write


def _remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def _pickle(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def _index(content: bytes) -> Callable[[Path], None]:
    """Return what puts an index of shards in the place of the weights."""

    def put(directory: Path) -> None:
        (directory / "model.safetensors").rename(directory.with_name("outside.safetensors"))
        (directory / "model.safetensors.index.json").write_bytes(content)

    return put


def _tokens(count: int) -> Callable[[Path], None]:
    """Return what changes the tokenizer's number of tokens."""

    def change(directory: Path) -> None:
        path = directory / "tokenizer.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        kept = dict(list(settings["model"]["vocab"].items())[:count])
        settings["model"]["vocab"] = kept | {f"t{i}": i for i in range(len(kept), count)}
        path.write_text(json.dumps(settings), encoding="utf-8")

    return change


def _edit_weights(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

    return edit


_HEAD = "decoder.lm_heads.0.weight"

_DAMAGE = [
    ("no configuration", _remove("config.json"), "holds no config.json"),
    ("no generation settings", _remove("generation_config.json"), "no generation_config.json"),
    ("no weights", _remove("model.safetensors"), "no weights instead of model.safetensors"),
    ("pickled weights", _pickle, "only pickled weights"),
    ("configuration is no JSON", _write("config.json", b"{"), "cannot read"),
    ("another system", _set("config.json", model_type="bark"), "of type 'bark'"),
    ("no codec", _set("config.json", audio_encoder=None), "says nothing about audio_encoder"),
    ("no rate", _set("config.json", audio_encoder__sampling_rate=0), "sampling rate 0"),
    ("unknown codec", _set("config.json", audio_encoder__model_type="x"), "cannot be loaded"),
    ("truncated weights", _write("model.safetensors", b"12345678"), "cannot be loaded"),
    ("a wider network", _set("config.json", decoder__hidden_size=48), "cannot be loaded"),
    ("a weight is missing", _edit_weights(lambda t: t.pop(_HEAD)), "lacks 1 weights"),
    ("not finite", _edit_weights(lambda t: t[_HEAD].fill_(float("nan"))), "not finite"),
    ("ends at once", _set("generation_config.json", max_length=4), "max_length 4"),
    ("no tokenizer", _remove("tokenizer.json"), "no tokenizer can be read"),
    ("broken tokenizer", _write("tokenizer.json", b"[]"), "no tokenizer can be read"),
    ("empty description", _write("description.txt", b" \n"), "is empty"),
    ("description in another encoding", _write("description.txt", b"\xff\xfe"), "cannot read"),
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
    model = open_parler(str(directory), "damaged")
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
    "location", ["nowhere", "/no/such/model", "a/b/c", "../x", "no name/at all"]
)
def test_what_is_no_model_is_said(location: str) -> None:
    with pytest.raises(ModelError, match=r"no Parler-TTS model at.*parler-tts-mini-v1"):
        open_parler(location, location)


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


def test_an_artifact_is_recognised_by_its_manifest(
    tiny_parler: ParlerModel, tmp_path: Path
) -> None:
    saved = _compress(tiny_parler, ("decoder.model",)).save(tmp_path / "int8")
    manifest = open_parler(str(saved), "again").manifest
    assert manifest is not None
    assert manifest.scheme == "int8-dynamic"


def test_shards_are_the_models_files(tiny_parler: ParlerModel, tmp_path: Path) -> None:
    saved = tiny_parler.save(tmp_path / "shards")
    (saved / "model.safetensors").unlink()
    root: Any = tiny_parler.root()
    root.save_pretrained(saved, max_shard_size="1MB")
    model = open_parler(str(saved), "shards")
    assert len(model.files().weights) > 1
    spoken = model.synthesize(TEXT, seed=0).samples
    np.testing.assert_array_equal(spoken, tiny_parler.synthesize(TEXT, seed=0).samples)
    model.files().weights[0].unlink()
    with pytest.raises(ModelError, match="which is not there"):
        open_parler(str(saved), "shards")


@pytest.mark.parametrize("changed", [False, True])
def test_a_table_of_positions_is_in_the_file_only_if_it_is_no_computed_one(
    tiny_parler: ParlerModel, tmp_path: Path, changed: bool
) -> None:
    from tts_compress.layers.structure import share
    from tts_compress.layers.tensors_file import TensorsFile

    root: Any = share(tiny_parler.root())
    table = root.decoder.model.decoder.embed_positions
    if changed:
        table.weights = type(table.weights)(table.weights * 1.5, requires_grad=False)
    model = tiny_parler.with_root(root, _manifest(()))
    saved = model.save(tmp_path / "saved")
    names = TensorsFile(saved / "model.safetensors").names
    assert ("decoder.model.decoder.embed_positions.weights" in names) == changed
    again = open_parler_artifact(saved, str(saved), read_manifest(saved))
    options = ParlerOptions(max_length=40)
    first, second = (m.with_options(options).synthesize(TEXT, seed=1) for m in (model, again))
    assert np.array_equal(first.samples, second.samples)
    # The loaded model keeps its own.
    tiny_parler.root().get_parameter("decoder.model.decoder.embed_positions.weights")
