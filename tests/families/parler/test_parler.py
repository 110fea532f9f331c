"""Parler-TTS: the official object, loaded, spoken with and exchanged."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.errors import ModelError
from tts_compress.models.base import Prompt
from tts_compress.models.parler.model import (
    DEFAULT_DESCRIPTION,
    ParlerModel,
    ParlerOptions,
    load_packages,
)

TEXT = "please call again at ten"


@pytest.fixture
def restored_threads() -> Iterator[None]:
    """Leave torch with as many threads as it had."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _official(directory: Path) -> tuple[Any, dict[str, Any]]:
    """Return the model and the inputs as the system's own instructions make them."""
    parler, transformers = load_packages()
    model = parler.ParlerTTSForConditionalGeneration.from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    how = tokenizer("a calm low voice", return_tensors="pt")
    said = tokenizer(TEXT, return_tensors="pt")
    return model, {
        "input_ids": how.input_ids,
        "attention_mask": how.attention_mask,
        "prompt_input_ids": said.input_ids,
        "prompt_attention_mask": said.attention_mask,
    }


def test_nothing_is_read_before_it_is_needed(
    tiny_parler_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tts_compress.models.parler.model.load_root", pytest.fail)
    model = ParlerModel.open(str(tiny_parler_dir), "it")
    assert model.sample_rate == 44100
    assert model.spec == "it"
    assert model.describe()["codebooks"] == 9
    assert {path.name for path in model.files().weights} == {"model.safetensors"}


def test_a_seed_pairs_two_models(tiny_parler: ParlerModel) -> None:
    """A model that hardly differs generates the same tokens, though it samples them."""
    import torch

    root = copy.deepcopy(tiny_parler.root())
    with torch.no_grad():
        for weight in root.get_submodule("decoder").parameters():
            weight.mul_(1 + 1e-6)
    near = tiny_parler.with_root(root, None)
    for seed in range(3):
        said = near.generate_tokens(TEXT, seed=seed).ids
        np.testing.assert_array_equal(said, tiny_parler.generate_tokens(TEXT, seed=seed).ids)


def test_without_a_seed_it_is_the_official_greedy_speech(
    tiny_parler: ParlerModel, tiny_parler_dir: Path
) -> None:
    model, inputs = _official(tiny_parler_dir)
    official = model.generate(**inputs, do_sample=False).numpy().reshape(-1)
    np.testing.assert_array_equal(tiny_parler.synthesize(TEXT, seed=None).samples, official)


def test_the_root_is_the_official_object(tiny_parler: ParlerModel, tiny_parler_dir: Path) -> None:
    import torch

    model, inputs = _official(tiny_parler_dir)
    torch.manual_seed(5)
    official = model.generate(**inputs)
    torch.manual_seed(5)
    root: Any = tiny_parler.root()
    assert not root.training
    torch.testing.assert_close(root.generate(**inputs), official, rtol=0, atol=0)


def test_scores_are_those_that_official_generation_draws_from(
    tiny_parler: ParlerModel, tiny_parler_dir: Path
) -> None:
    model, inputs = _official(tiny_parler_dir)
    found = model.generate(
        **inputs, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    official = np.stack([step.numpy() for step in found.logits])  # [S, K, V]
    tokens = tiny_parler.generate_tokens(TEXT, seed=None)
    scores = tiny_parler.logits(TEXT, tokens)
    assert scores.shape == official.shape == (len(tokens.ids) - 1, 9, 65)
    np.testing.assert_allclose(scores, official, atol=2e-5)


def test_tokens_are_delayed_and_marked(tiny_parler: ParlerModel) -> None:
    tokens = tiny_parler.generate_tokens(TEXT, seed=0)
    steps, books = tokens.chosen.shape
    assert tokens.ids.shape == (steps + 1, books)
    for book in range(books):
        assert (tokens.ids[: book + 1, book] == 65).all()  # codebook k begins k steps later
        assert not tokens.chosen[:book, book].any()
    assert tokens.chosen.any(axis=0).all()
    assert (tokens.ids[1:][tokens.chosen] < 64).all()
    assert (tokens.ids[1:][~tokens.chosen] >= 64).all()


def test_components_hold_the_weights(tiny_parler: ParlerModel) -> None:
    parts = tiny_parler.components()
    assert list(parts) == ["text_encoder", "embed_prompts", "decoder", "audio_encoder"]
    assert parts["embed_prompts"].parameters == 128 * 32
    assert parts["embed_prompts"].size_bytes == 128 * 32 * 4
    assert parts["decoder"].operators["Linear"] == 2 * 10 + 9
    assert parts["audio_encoder"].operators["ConvTranspose1d"] == 4
    # Positions are computed, biases and norms not counted; the encoder shares its embedding.
    weights = {
        name: parameter.numel()
        for name, parameter in tiny_parler.root().named_parameters()
        if parameter.numel() > max(parameter.shape) and not name.endswith("positions.weights")
    }
    assert sum(part.parameters for part in parts.values()) == sum(weights.values())


def test_a_description_decides_how_it_speaks(tiny_parler: ParlerModel) -> None:
    assert tiny_parler.description == "a calm low voice"
    loud = tiny_parler.with_prompt(Prompt(description=" a loud child "))
    assert loud.description == "a loud child"
    one, other = (model.synthesize(TEXT, seed=0).samples for model in (tiny_parler, loud))
    assert len(one) != len(other) or np.abs(one - other).max() > 0.01
    assert loud.root() is tiny_parler.root()
    assert tiny_parler.with_prompt(Prompt(text="unused")).description == "a calm low voice"
    with pytest.raises(ModelError, match="description is empty"):
        tiny_parler.with_prompt(Prompt(description="  "))


def test_a_folder_without_a_description_speaks_neutrally(
    make_parler_dir: Callable[..., Path],
) -> None:
    directory = make_parler_dir("plain")
    (directory / "description.txt").unlink()
    assert ParlerModel.open(str(directory), "x").description == DEFAULT_DESCRIPTION


def test_options_change_how_tokens_are_drawn(tiny_parler: ParlerModel) -> None:
    short = tiny_parler.with_options(ParlerOptions(max_length=24))
    # A step is lost to the start and eight to the codebooks' delay.
    assert len(short.synthesize(TEXT, seed=0).samples) <= (24 - 9) * 512
    cold = tiny_parler.with_options(ParlerOptions(temperature=1e-4))
    np.testing.assert_array_equal(
        cold.synthesize(TEXT, seed=7).samples, tiny_parler.synthesize(TEXT, seed=None).samples
    )
    with pytest.raises(ModelError, match="max_length is 17"):
        tiny_parler.with_options(ParlerOptions(max_length=17)).synthesize(TEXT, seed=0)


def test_options_stand_behind_the_folder_and_are_saved(
    tiny_parler_dir: Path, tmp_path: Path
) -> None:
    spec = f"{tiny_parler_dir}?max_length=24&min_new_tokens=23&temperature=0.5"
    model = ParlerModel.open(spec, spec)
    assert model.options == ParlerOptions(max_length=24, min_new_tokens=23, temperature=0.5)
    spoken = model.synthesize(TEXT, seed=0).samples
    assert len(spoken) == (24 - 9) * 512
    again = ParlerModel.open(str(model.save(tmp_path / "saved")), "saved")
    np.testing.assert_array_equal(again.synthesize(TEXT, seed=0).samples, spoken)
    settings: Any = model.root()
    assert settings.generation_config.max_length != 24, "upstream's object is as it was read"
    for wrong, told in [
        ("steps=2", "there are max_length, min_new_tokens, temperature"),
        ("temperature=0", "temperature is 0; give a number from 0.0001 to 100"),
        ("max_length=2.5", "max_length is 2.5; give an integer from 1 to 100000"),
    ]:
        with pytest.raises(ModelError, match=told):
            ParlerModel.open(f"{tiny_parler_dir}?{wrong}", "x")


def test_shorter_speech_ends_its_codebooks_in_turn(tiny_parler: ParlerModel) -> None:
    short = tiny_parler.with_options(ParlerOptions(max_length=24, min_new_tokens=23))
    tokens = short.generate_tokens(TEXT, seed=0)
    assert len(tokens.ids) == 24
    for book in range(9):
        # The first codebook's last token is forced eight steps before the last one's.
        assert not tokens.chosen[23 - 8 + book :, book].any()
        assert tokens.chosen[book : 23 - 8 + book, book].all()


def test_speech_that_never_ends_is_cut(tiny_parler: ParlerModel) -> None:
    endless = tiny_parler.with_options(ParlerOptions(min_new_tokens=39))
    tokens = endless.generate_tokens(TEXT, seed=0)
    assert len(tokens.ids) == 40
    assert len(endless.synthesize(TEXT, seed=0).samples) == (40 - 9) * 512


@pytest.mark.usefixtures("restored_threads")
def test_the_runtime_is_the_official_one(tiny_parler: ParlerModel, tiny_parler_dir: Path) -> None:
    import torch

    runtime = tiny_parler.open_runtime(threads=2)
    assert torch.get_num_threads() == 2
    model, inputs = _official(tiny_parler_dir)
    torch.manual_seed(8)
    official = model.generate(**inputs).numpy().reshape(-1)
    torch.manual_seed(8)
    np.testing.assert_array_equal(runtime.speak(TEXT).samples, official)
    again = runtime.speak(TEXT).samples
    assert len(again) != len(official) or np.abs(again - official).max() > 0.01


@pytest.mark.usefixtures("restored_threads")
def test_the_runtime_takes_the_models_options(tiny_parler: ParlerModel) -> None:
    options = ParlerOptions(max_length=24, min_new_tokens=23)
    runtime = tiny_parler.with_options(options).open_runtime(threads=1)
    assert len(runtime.speak(TEXT).samples) == (24 - 9) * 512


def test_a_hub_name_is_fetched_once(tiny_parler_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[str] = []

    def download(name: str, **_: Any) -> str:
        asked.append(name)
        return str(tiny_parler_dir)

    monkeypatch.setattr(hub, "snapshot_download", download)
    model = ParlerModel.open("parler-tts/parler-tts-mini-v1", "it")
    assert model.sample_rate == 44100
    assert len(model.synthesize(TEXT, seed=0).samples) > 0
    assert model.with_prompt(Prompt(description="another")).files().weights
    assert asked == ["parler-tts/parler-tts-mini-v1"]  # once
    assert model.spec == "it"


@pytest.mark.usefixtures("tiny_parler_dir")
def test_a_hub_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def download(name: str, **_: Any) -> str:
        raise ConnectionError(f"no route to {name}")

    monkeypatch.setattr(hub, "snapshot_download", download)
    with pytest.raises(ModelError, match=r"no folder .* no route"):
        ParlerModel.open("parler-tts/parler-tts-mini-v1", "it").synthesize(TEXT, seed=0)
