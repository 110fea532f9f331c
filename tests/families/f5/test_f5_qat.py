"""F5-TTS trained without data: the solver's states for the transformer, samples for the vocoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress import find_recipe, load
from tts_compress.artifact import read_manifest
from tts_compress.cli import main
from tts_compress.errors import QuantizationError
from tts_compress.models.base import Model
from tts_compress.models.f5.model import F5Model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tts_compress.qat.options import TrainingOptions

_TEXTS = ("one and two.", "three or four.", "five, six.")
_TEXT = "hello there, this is a text."


@pytest.fixture(scope="module")
def texts(write_texts: Callable[..., str]) -> str:
    """Return the path of a calibration set."""
    return write_texts(_TEXTS)


@pytest.fixture(scope="module")
def train(tiny_f5: F5Model, train_on: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function that trains the model, in four bits by default."""
    return train_on(tiny_f5, _TEXTS)


@pytest.fixture(scope="module")
def small(train: Callable[..., Any]) -> Any:
    """Return the tiny model in four bits, trained without a stop."""
    return train()


def test_the_transformer_learns_four_bits_and_is_saved(small: F5Model, tmp_path: Path) -> None:
    assert small.manifest is not None
    assert small.manifest.calibration is not None
    assert small.manifest.calibration.set == "few"
    training = small.manifest.training
    assert training is not None
    assert set(training.before) == {
        "transformer/mse",
        "vocoder.decode/waveform",
        "vocoder.decode/log-mel",
    }
    assert training.after["transformer/mse"] < 0.6 * training.before["transformer/mse"]
    spoken = small.synthesize(_TEXT, seed=0).samples
    saved = small.save(tmp_path / "small")
    again = load(saved)
    assert isinstance(again, F5Model)
    np.testing.assert_array_equal(again.synthesize(_TEXT, seed=0).samples, spoken)
    assert read_manifest(saved).training == training


def test_deployed_components_answer_as_their_students_do(
    tiny_f5: F5Model, few_updates: TrainingOptions, deployed: Callable[..., Any]
) -> None:
    """Up to one activation a layer that lies between two codes and falls to either side.

    8 bits of N bell-shaped numbers leave 40 dB, and one that is a code off is a share of 12 / N of
    that noise: 60 dB of the 1,200 numbers and more that flow into most layers here. Four bits are
    multiplied in bfloat16, which leaves as much.
    """
    del few_updates  # what it needs is what training needs
    for scheme in ("int8-qat", "int4-weight-only"):
        found = deployed(tiny_f5, scheme, _TEXTS)
        assert tuple(found) == ("transformer", "vocoder.decode")
        assert all(agreement.snr_db > 60 for agreement in found.values()), found


@pytest.mark.parametrize("stage", ["train transformer", "train vocoder.decode"])
def test_stopped_it_goes_on_with_the_same_bytes(
    small: F5Model, train: Callable[..., Any], resume: Callable[..., list[str]], stage: str
) -> None:
    resume(train, small, (stage, 13))


def test_static_ranges_are_observed_in_speech(train: Callable[..., Any]) -> None:
    small = train("int8-static")
    assert small.manifest is not None
    assert any("static" in label for label in small.manifest.counts)
    assert np.isfinite(small.synthesize(_TEXT, seed=0).samples).all()


def test_a_recipe_that_rounds_nothing_is_refused(tiny_f5: F5Model, texts: str) -> None:
    pytest.importorskip("accelerate")
    from tts_compress.compression import compress_trained

    found = find_recipe("f5-tts", "int8-qat")
    rules = tuple(rule for rule in found.component if rule.weights == "float16")
    with pytest.raises(QuantizationError, match="no int8 or int4 weights"):
        compress_trained(
            tiny_f5, recipe=found.model_copy(update={"component": rules}), calibration=texts
        )


def test_training_changes_no_rule() -> None:
    assert find_recipe("f5-tts", "int8-qat").component == find_recipe("f5-tts", "int8").component


def test_command_trains_and_speaks(
    tiny_f5_dir: Path, texts: str, tmp_path: Path, few_updates: TrainingOptions
) -> None:
    del few_updates
    output = tmp_path / "small"
    quick = ["--steps", "2", "--threads", "1", "--scheme", "int4-weight-only", "--texts", texts]
    recording = ["--reference", str(tiny_f5_dir / "reference.wav"), "--reference-text", "one two"]
    spec = f"f5-tts:{tiny_f5_dir}?nfe_step=2"
    arguments = ["qat", spec, "--output", str(output), *quick, *recording]
    assert main(arguments) == 0
    small = load(output)
    assert isinstance(small, Model)
    assert small.manifest is not None
    assert small.manifest.scheme == "int4-weight-only"
    assert (tmp_path / "small.training" / "transformer" / "checkpoint.safetensors").is_file()
    assert main([*arguments, "--resume", "--force"]) == 0
