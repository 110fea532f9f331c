"""Voices of transformers on disk: errors in files and texts, each in one line."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.damage import WEIGHTS, alter, edit_weights, pickle_weights, remove, write
from tts_compress.errors import MissingExtraError, ModelError, TextError
from tts_compress.models import load

TEXT = "please call again at ten"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("vits", "VitsModel"), ("bark", "BarkModel")])
def test_an_original_is_saved_in_the_official_format(
    request: pytest.FixtureRequest, tmp_path: Path, transformers: Any, name: str, kind: str
) -> None:
    voice, text = request.getfixturevalue(name), "call at ten"
    saved = voice.save(tmp_path / "copy")
    written = getattr(transformers, kind).from_pretrained(saved).state_dict()
    original = getattr(transformers, kind).from_pretrained(request.getfixturevalue(f"{name}_dir"))
    for key, tensor in original.state_dict().items():
        assert written[key].equal(tensor), key
    again: Any = load(f"transformers:{saved}")
    expected = voice.synthesize(text, seed=0).samples
    np.testing.assert_array_equal(again.synthesize(text, seed=0).samples, expected)


_FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no configuration": (remove("config.json"), "holds no config.json"),
    "broken configuration": (write("config.json", b"{"), "cannot read .*config.json"),
    "another type": (
        alter("config.json", model_type="bert"),
        "of type 'bert'; accepted: .*speecht5, vibevoice, vits",
    ),
    "a list": (write("config.json", b"[]"), "of type None; accepted"),
    "no tokenizer": (remove("tokenizer_config.json"), "holds no tokenizer_config.json"),
    "tokenizer of a list": (
        write("tokenizer_config.json", b"[]"),
        "holds no settings; fetch it again",
    ),
    "no vocabulary": (remove("vocab.json"), "no tokenizer can be read"),
    "no weights": (remove(WEIGHTS), "holds no weights"),
    "pickled weights": (pickle_weights, "only pickled weights, which can run code"),
    "truncated weights": (write(WEIGHTS, b"\x08\0\0\0\0\0\0\0{}"), "cannot be loaded"),
    "a weight missing": (
        edit_weights(lambda tensors: tensors.pop("decoder.conv_pre.weight")),
        "lacks 1 weights .* 'decoder.conv_pre.weight'",
    ),
    "a weight of NaN": (
        edit_weights(lambda tensors: tensors["decoder.conv_pre.weight"].fill_(float("nan"))),
        "not finite",
    ),
    "other sizes": (alter("config.json", hidden_size=48), "cannot be loaded"),
    "sampling rate": (alter("config.json", sampling_rate="fast"), "sampling rate 'fast', not Hz"),
    "speakers": (alter("config.json", num_speakers=10**9), "num_speakers 1000000000"),
    # Building them would take hours.
    "a hundred million layers": (
        alter("config.json", num_hidden_layers=10**8),
        "make more than 1,000 weights; check numbers of layers",
    ),
    "endless durations": (
        edit_weights(lambda tensors: tensors["duration_predictor.flows.0.translate"].fill_(-30)),
        "the durations add up to .* frames",
    ),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_is_one_line(
    vits_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr("tts_compress.models.pretrained._MOST_WEIGHTS", 1_000)
    break_it, message = _FAULTS[fault]
    folder = shutil.copytree(vits_dir, tmp_path / "voice")
    break_it(folder)
    with pytest.raises(ModelError, match=message) as caught:
        load(f"transformers:{folder}").synthesize(TEXT, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["nowhere", "one/two/three", "../voices", "a/"])
def test_a_place_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    monkeypatch.chdir(tmp_path)  # or a folder beside the checkout could have the name
    with pytest.raises(ModelError, match="a name on the hub such as 'facebook/mms-tts-eng'"):
        load(f"transformers:{place}")


def test_without_a_network_a_name_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="the hub does not give it") as caught:
        load("transformers:facebook/mms-tts-none")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing to speak"),
        ("你好", "knows no symbol of '你好'"),
        ("again " * 1000, "tokens; give a text of 1 to 4096"),
        ("nul\0", "null characters"),
    ],
)
def test_a_text_that_cannot_be_spoken_is_refused(vits: Any, text: str, message: str) -> None:
    with pytest.raises(TextError, match=message) as caught:
        vits.synthesize(text, seed=0)
    assert "\n" not in str(caught.value)


def test_a_text_is_not_spoken_without_its_romanizer(
    vits_dir: Path, edited: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers would leave out what is not ASCII, with a remark in its log."""
    monkeypatch.setitem(__import__("sys").modules, "uroman", None)
    model = load(f"transformers:{edited(vits_dir, 'tokenizer_config.json', is_uroman=True)}")
    assert model.synthesize("hello", seed=0).samples.size
    with pytest.raises(MissingExtraError, match=r"uroman.*tts-compress\[transformers-tts\]"):
        model.synthesize("здравствуйте", seed=0)


def test_a_text_is_not_spoken_without_its_phonemizer(
    vits_dir: Path, edited: Callable[..., Path]
) -> None:
    try:
        import phonemizer  # noqa: F401
    except ImportError:
        folder = edited(vits_dir, "tokenizer_config.json", phonemize=True)
        with pytest.raises(MissingExtraError, match=r"phonemizer.*\[transformers-tts\]"):
            load(f"transformers:{folder}").synthesize("hello", seed=0)


def test_symbols_beyond_the_model_are_refused(vits_dir: Path, edited: Callable[..., Path]) -> None:
    model = load(f"transformers:{edited(vits_dir, 'vocab.json', ß=40)}")
    with pytest.raises(ModelError, match="gives token 40, and the model knows 29"):
        model.synthesize("heiß", seed=0)
