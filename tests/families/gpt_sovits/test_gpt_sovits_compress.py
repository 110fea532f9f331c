"""GPT-SoVITS in fewer bits by the shipped recipes: saved files, speech, and closeness to FP32."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress.compression import compress
from tts_compress.errors import ModelError, SchemeError, TTSCompressWarning
from tts_compress.models.gpt_sovits.model import GptSovitsModel
from tts_compress.recipes.family import schemes_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tts_compress.models.gpt_sovits.loading import Official

TEXTS = ("please call again at ten", "the door was open")

# The formats of the T2S blocks and the decoder's convolutions.
_KINDS = {
    "int8": ("int8/dynamic", "int8/dynamic"),
    "int8-dynamic": ("int8/dynamic", "int8/dynamic"),
    "int8-static": ("int8/static", "int8/static"),
    "int8-weight-only": ("int8/none", "int8/none"),
    "int4-weight-only": ("int4/none", "int8/none"),
    "fp16": ("float16/float16", "float16/float16"),
    "bf16": ("bfloat16/bfloat16", "bfloat16/bfloat16"),
}

# Decibels of audio with the same tokens and noise, five below what is measured on the tiny model;
# and the share of positions that keep their most probable token.
_NEAR = {
    "int8": (50, 0.95),
    "int8-dynamic": (50, 0.95),
    "int8-static": (38, 0.95),
    "int8-weight-only": (37, 0.95),
    "int4-weight-only": (None, 0.6),
    "fp16": (46, 0.99),
    "bf16": (29, 0.97),
}


def _compress(model: GptSovitsModel, scheme: str) -> GptSovitsModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TTSCompressWarning)  # the processor has no such arithmetic
        small = compress(model, scheme)
    assert isinstance(small, GptSovitsModel)
    return small


@pytest.mark.parametrize("scheme", _KINDS)
def test_what_is_saved_is_what_the_recipe_promises(
    tiny: GptSovitsModel,
    tmp_path: Path,
    official: Official,
    compare_models: Callable[..., Any],
    scheme: str,
) -> None:
    from torch import nn

    small = _compress(tiny, scheme)
    near = compare_models(tiny, small, TEXTS)
    snr, agreement = _NEAR[scheme]
    assert near.positions > 90
    assert near.agreement >= agreement

    saved = small.save(tmp_path / scheme)
    model = GptSovitsModel.open(str(saved), f"gpt-sovits:{saved}")
    assert model.manifest is not None
    assert model.options == tiny.options
    found = {
        layer.module: f"{layer.weights}/{layer.activations}" for layer in model.manifest.layers
    }
    root = tiny.root()
    blocks = [
        name
        for name, module in root.named_modules()
        if isinstance(module, nn.Linear) and name.startswith("t2s.t2s_transformer.")
    ]
    assert len(blocks) == 2 * 4
    assert {found[name] for name in blocks} == {_KINDS[scheme][0]}
    assert found["vits.dec.ups.0"] == found["vits.dec.resblocks.0.convs1.0"] == _KINDS[scheme][1]
    assert found["t2s.ar_predict_layer"] == found["vits.ssl_proj"] == "float16/none"
    assert _counted(model.root()) == _counted(small.root())
    assert sum(model.manifest.counts.values()) == len(found)
    assert not any("enc_q" in name for name in found)
    size = sum(path.stat().st_size for path in tiny.files().weights)
    share = 0.5 if scheme in {"fp16", "bf16"} else 0.35
    assert model.manifest.size_bytes < share * size

    expected = tiny.synthesize(TEXTS[0], seed=0).samples
    spoken = small.synthesize(TEXTS[0], seed=0).samples
    np.testing.assert_array_equal(model.synthesize(TEXTS[0], seed=0).samples, spoken)
    assert spoken.std() > 0.01
    if snr is not None:
        assert spoken.shape == expected.shape
        assert _snr(expected, spoken) > snr
    _speak_by_upstream(model, official)


def _speak_by_upstream(model: GptSovitsModel, official: Official) -> None:
    """Call the official `run` as upstream's users do."""
    tts = model.tts
    assert isinstance(tts, official.inference.TTS)
    assert type(tts).run is official.inference.TTS.run
    inputs = {
        "text": TEXTS[1],
        "text_lang": "en",
        "prompt_lang": "en",
        "prompt_text": model.prompt.text,
        "ref_audio_path": tts.prompt_cache["ref_audio_path"],
        "streaming_mode": False,
    }
    with official.running():
        rate, wave = next(tts.run(inputs))
        pieces = [piece for _, piece in tts.run(inputs | {"streaming_mode": True})]
    assert rate == 32000
    assert np.abs(wave).max() > 300
    assert np.abs(np.concatenate(pieces)).max() > 300


def _counted(root: Any) -> Counter[str]:
    return Counter(type(module).__name__ for module in root.modules())


def _snr(expected: Any, spoken: Any) -> float:
    noise = np.square(spoken - expected).sum()
    return float(10 * np.log10(np.square(expected).sum() / noise))


def test_every_scheme_is_tried(tiny: GptSovitsModel) -> None:
    # Training has tests of its own; no system is moved to a GPU, which 8-bit floats need.
    assert set(_KINDS) == set(schemes_of("gpt-sovits")) - {"int8-qat"}
    with pytest.raises(SchemeError, match="no scheme 'fp8' for family 'gpt-sovits'"):
        compress(tiny, "fp8")


def test_the_same_model_gives_the_same_bytes(tiny: GptSovitsModel, tmp_path: Path) -> None:
    saved = [_compress(tiny, "int8").save(tmp_path / name) for name in ("first", "second")]
    names = [sorted(path.name for path in folder.iterdir()) for folder in saved]
    assert names[0] == names[1]
    for name in names[0]:
        assert (saved[0] / name).read_bytes() == (saved[1] / name).read_bytes(), name


def test_an_artifact_needs_nothing_of_its_original(tiny: GptSovitsModel, tmp_path: Path) -> None:
    saved = _compress(tiny, "int8").save(tmp_path / "int8")
    assert {path.name for path in saved.iterdir()} >= {
        "manifest.json",
        "model.safetensors",
        "reference.txt",
        "reference.wav",
        "settings.json",
        "tokenizer.json",
    }
    files = GptSovitsModel.open(str(saved), "x").files()
    assert all(path.parent == saved for path in (*files.weights, *files.settings))


def test_what_is_in_memory_only_has_no_files(tiny: GptSovitsModel) -> None:
    small = _compress(tiny, "int8")
    with pytest.raises(ModelError, match=r"call save\(\) first"):
        small.files()
    with pytest.raises(ModelError, match=r"call save\(\) first"):
        small.open_runtime(threads=1)
