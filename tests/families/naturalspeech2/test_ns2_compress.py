"""Every scheme keeps the model's speech, and its manifest records the file's content."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tts_compress.artifact import read_manifest
from tts_compress.compression import compress
from tts_compress.errors import TTSCompressWarning
from tts_compress.models.naturalspeech2.model import NaturalSpeech2Model

if TYPE_CHECKING:
    from pathlib import Path

    from tts_compress.audio import Samples

_TEXT = "hello there, good day."

_CONVOLUTIONS = 3 * 6
_LINEAR = 6 + 2 * (4 + 2)
"""Counts in the estimator's six layers, of which two have attention and a modulation."""

_CODEC = {"Conv1d int8/none": 1 + 3 + 3 + 1, "ConvTranspose1d int8/none": 3}
"""Layers of the codec's decoder, where those of 64 channels and more are rounded."""

_ENCODERS = {
    "Conv1d int8/none": 2 + 2 + 4 + _CODEC["Conv1d int8/none"],
    "ConvTranspose1d int8/none": _CODEC["ConvTranspose1d int8/none"],
    "Linear int8/none": (4 + 1 + 2) * 2 + (4 + 1) * 2 + 8 + 2 + 4,
}
"""Layers of text, prompt, pitch, conditions and the codec, with only their weights rounded."""

_OTHERS = _ENCODERS | {
    "Conv1d int8/none": _ENCODERS["Conv1d int8/none"] + 4,
    "Linear int8/none": _ENCODERS["Linear int8/none"] + 8,
}
"""The same with durations."""

_INTEGERS = {
    "Conv1d int8/dynamic": _CONVOLUTIONS,
    "Linear int8/dynamic": _LINEAR,
    **_OTHERS,
}
_SCHEMES: dict[str, dict[str, int]] = {
    "int8": _INTEGERS,
    "int8-dynamic": _INTEGERS,
    "int8-static": {
        "Conv1d int8/static": _CONVOLUTIONS,
        "Linear int8/static": _LINEAR,
        **_OTHERS,
    },
    "int8-weight-only": _OTHERS
    | {
        "Conv1d int8/none": _CONVOLUTIONS + _OTHERS["Conv1d int8/none"],
        "Linear int8/none": _LINEAR + _OTHERS["Linear int8/none"],
    },
    "int4-weight-only": {
        "Conv1d int4/none": _CONVOLUTIONS,
        "Linear int4/none": _LINEAR,
        **_ENCODERS,
    },
    "fp16": {"Conv1d float16/float16": _CONVOLUTIONS, "Linear float16/float16": _LINEAR},
    "bf16": {"Conv1d bfloat16/bfloat16": _CONVOLUTIONS, "Linear bfloat16/bfloat16": _LINEAR},
}

# Signal above its difference from the original's, in dB, some 6 below what is measured on the tiny
# model, whose rounding errors have few others to cancel with.
_LIMITS = {
    "int8": 22,
    "int8-dynamic": 22,
    "int8-static": 22,
    "int8-weight-only": 24,
    "int4-weight-only": 4,
    "fp16": 45,
    "bf16": 33,
}


def _snr_db(reference: Samples, candidate: Samples) -> float:
    assert len(reference) == len(candidate)
    noise = np.square(candidate - reference).sum()
    return float(10 * np.log10(np.square(reference).sum() / noise))


@pytest.mark.parametrize("scheme", _SCHEMES)
def test_a_scheme_is_compressed_saved_loaded_and_speaks(
    tiny_ns2: NaturalSpeech2Model, tmp_path: Path, scheme: str
) -> None:
    from tts_compress.torch.layers.base import CompressedLayer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TTSCompressWarning)  # the processor has no such arithmetic
        small = compress(tiny_ns2, scheme)
    assert isinstance(small, NaturalSpeech2Model)
    original, spoken = (m.synthesize(_TEXT, seed=0).samples for m in (tiny_ns2, small))
    assert _LIMITS[scheme] < _snr_db(original, spoken) < 100

    saved = small.save(tmp_path / scheme)
    model = NaturalSpeech2Model.open(str(saved), "small", read_manifest(saved))
    assert np.array_equal(model.synthesize(_TEXT, seed=0).samples, spoken)
    heard = model.open_runtime(threads=1).speak(_TEXT).samples
    assert np.isfinite(heard).all()
    assert np.abs(heard).max() > 0.05

    assert model.manifest is not None
    kept = {"float16/none", "float32/none"}
    counts = {k: v for k, v in model.manifest.counts.items() if k.split(" ")[1] not in kept}
    assert counts == _SCHEMES[scheme]
    found: list[str] = []
    for name, part in model.root().named_modules():
        # Some consist of another one.
        if isinstance(part, CompressedLayer) and not name.startswith(tuple(f"{n}." for n in found)):
            found.append(name)
    assert len(found) == sum(_SCHEMES[scheme].values())
    size = (saved / "model.safetensors").stat().st_size
    assert model.manifest.size_bytes == size
    assert [path.stat().st_size for path in model.files().weights] == [size]
    sizes = [sum(c.size_bytes for c in m.components().values()) for m in (small, model)]
    assert sizes[0] == sizes[1]


def test_what_decides_durations_computes_in_fp32(tiny_ns2: NaturalSpeech2Model) -> None:
    small = compress(tiny_ns2, "int8")
    assert small.manifest is not None
    layers = {layer.module: layer for layer in small.manifest.layers}
    durations = [x for name, x in layers.items() if ".duration_predictor." in name]
    assert {(x.weights, x.activations) for x in durations} == {
        ("int8", "none"),
        ("float16", "none"),
    }
    assert layers["prior_encoder.duration_predictor.linear"].weights == "float16"
    others = [x for name, x in layers.items() if not name.startswith("diffusion.")]
    assert {x.activations for x in others} == {"none"}
    encoder = [x for name, x in layers.items() if name.startswith("codec.encoder.")]
    assert {x.weights for x in encoder} == {"float16"}  # it chooses codes


def test_compressing_leaves_the_original_as_it_was(tiny_ns2: NaturalSpeech2Model) -> None:
    before = {name: tensor.clone() for name, tensor in tiny_ns2.root().state_dict().items()}
    spoken = tiny_ns2.synthesize(_TEXT, seed=0).samples
    compress(tiny_ns2, "int8")
    after = tiny_ns2.root().state_dict()
    assert list(after) == list(before)
    assert all(tensor.equal(before[name]) for name, tensor in after.items())
    assert np.array_equal(tiny_ns2.synthesize(_TEXT, seed=0).samples, spoken)
