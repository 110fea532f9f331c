"""VITS by transformers' own class: what it speaks, in FP32 and by every recipe."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.conformance import compressed
from tts_compress.errors import ModelError
from tts_compress.models import load
from tts_compress.models.base import Prompt, Speaking, TorchModel
from tts_compress.models.speakers import primary_language
from tts_compress.models.torch_noise import paired_noise
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

TEXT = "please call again at ten"


def test_it_speaks_as_the_official_object(vits: Any, vits_dir: Path, transformers: Any) -> None:
    import torch

    official = transformers.VitsModel.from_pretrained(vits_dir).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(vits_dir)
    with paired_noise(7), torch.no_grad():
        expected = official(**tokenizer(TEXT, return_tensors="pt")).waveform[0]
    found = vits.synthesize(TEXT, seed=7)
    np.testing.assert_array_equal(found.samples, expected.numpy())
    assert found.sample_rate == vits.sample_rate == 16_000
    assert 0.01 < np.abs(found.samples).max() < 1
    assert isinstance(vits, TorchModel)
    assert vits.describe()["type"] == "vits"


@pytest.fixture(scope="module")
def small(vits: Any) -> Any:
    """Return the voice in INT8, in memory."""
    return compressed(vits, "int8")


def test_int8_is_integers_where_the_time_is(vits: Any, small: Any) -> None:
    formats = {x.module: (x.weights, x.activations) for x in small.manifest.layers}
    integers = {name for name, found in formats.items() if found == ("int8", "dynamic")}
    sound = {
        name for name in formats if name.startswith(("flow.", "decoder.", "text_encoder.project"))
    }
    assert sound - integers == {"decoder.conv_post"}
    assert small.components()["decoder"].size_bytes < vits.components()["decoder"].size_bytes / 3


def test_an_artifact_is_spoken_by_the_official_object(
    small: Any, tmp_path: Path, transformers: Any
) -> None:
    import torch

    saved = small.save(tmp_path / "int8")
    opened: Any = load(saved)
    official = opened.root()
    assert isinstance(official, transformers.VitsModel)
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    with paired_noise(3), torch.no_grad():
        samples = official(**tokenizer(TEXT, return_tensors="pt")).waveform[0]
    np.testing.assert_array_equal(samples.numpy(), opened.synthesize(TEXT, seed=3).samples)


@pytest.mark.slow
def test_speakers_are_chosen_by_number(choir: Any) -> None:
    assert dict(choir.speakers) == {"0": 0, "1": 1, "2": 2}
    said = [
        choir.speaking_as(Speaking(speaker=each)).synthesize(TEXT, seed=0).samples
        for each in (0, "1", 2)
    ]
    np.testing.assert_array_equal(choir.synthesize(TEXT, seed=0).samples, said[0])
    assert not any(np.array_equal(said[0], other) for other in said[1:])
    with pytest.raises(ModelError, match=r"has no speaker 'anna'; known: 0, 1, 2"):
        choir.speaking_as(Speaking(speaker="anna"))


def test_a_voice_of_one_speaker_has_none_to_choose(vits: Any) -> None:
    assert not vits.speakers
    with pytest.raises(ModelError, match="has one speaker"):
        vits.speaking_as(Speaking(speaker="0"))
    assert vits.speaking_as(Speaking(prompt=Prompt(description="loudly"))) is vits


@pytest.mark.parametrize(
    ("settings", "stated", "code"),
    [
        ({}, "eng", "en"),
        ({"language": "deu"}, "deu", "de"),
        ({"language": "uzb-script_cyrillic"}, "uzb-script_cyrillic", "uz"),
        ({"language": "acu"}, "acu", "acu"),
        ({"language": None, "phonemize": True}, "en-us", "en"),
    ],
)
def test_a_voice_states_its_language(
    vits_dir: Path, edited: Callable[..., Path], settings: Any, stated: str, code: str
) -> None:
    model = load(f"transformers:{edited(vits_dir, 'tokenizer_config.json', **settings)}")
    assert model.speaking.languages == (stated,)
    assert primary_language(stated) == code


def test_a_voice_may_state_no_language(vits_dir: Path, edited: Callable[..., Path]) -> None:
    silent = edited(vits_dir, "tokenizer_config.json", language=None)
    assert load(f"transformers:{silent}").speaking.languages == ()


def test_the_official_model_of_a_compressed_voice_takes_batches(small: Any) -> None:
    """The longer text says what it says alone; ranges of integers are those of the batch."""
    torch = pytest.importorskip("torch")
    model = copy_sharing_tensors(small.root())
    model.noise_scale = model.noise_scale_duration = 0.0
    first, second = [1, 5, 3, 7, 2, 9, 4, 8, 3, 1], [1, 6, 2, 5, 4, 3]
    padding = [0] * (len(first) - len(second))
    ids = torch.tensor([first, second + padding])
    mask = torch.tensor([[1] * len(first), [1] * len(second) + padding])
    with torch.no_grad():
        both = model(input_ids=ids, attention_mask=mask)
        single = [model(input_ids=torch.tensor([text])) for text in (first, second)]
    lengths = [spoken.waveform.shape[1] for spoken in single]
    assert both.sequence_lengths.tolist() == lengths
    longest = max(range(2), key=lengths.__getitem__)
    wanted = single[longest].waveform[0]
    assert (both.waveform[longest] - wanted).abs().max() < 0.1 * wanted.abs().max()
