"""F5-TTS trained without data, by the command that people type and by other schemes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress import find_recipe, load
from tts_compress.cli import main
from tts_compress.errors import QuantizationError
from tts_compress.models.base import Model
from tts_compress.models.f5.model import F5Model

if TYPE_CHECKING:
    from tts_compress.qat.options import TrainingOptions

_TEXTS = ("one and two.", "three or four.", "five, six.")


@pytest.fixture(scope="module")
def texts(write_texts: Callable[..., str]) -> str:
    """Return the path of a calibration set."""
    return write_texts(_TEXTS)


def test_static_ranges_are_observed_in_speech(
    tiny_f5: F5Model, train_on: Callable[..., Callable[..., Any]]
) -> None:
    small = train_on(tiny_f5, _TEXTS, steps=4)("int8-static")
    assert any("static" in label for label in small.manifest.counts)
    assert np.isfinite(small.synthesize("hello there.", seed=0).samples).all()


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
