"""The manifest of a compressed F5-TTS model agrees with the file and the official object."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tts_compress.compression import compress
from tts_compress.errors import TTSCompressWarning
from tts_compress.models import load
from tts_compress.models.f5.model import F5Model
from tts_compress.recipes.family import find_recipe

if TYPE_CHECKING:
    from pathlib import Path

_BLOCKS = 2 * 7
"""Linear layers of two transformer blocks: modulation, four of attention, two of the rest."""

_VOCODER = 2 * 2

_SCHEMES = {
    "int8": {"Linear int8/dynamic": _BLOCKS + _VOCODER},
    "int8-dynamic": {"Linear int8/dynamic": _BLOCKS + _VOCODER},
    "int8-static": {"Linear int8/static": _BLOCKS + _VOCODER},
    "int8-weight-only": {"Linear int8/none": _BLOCKS + _VOCODER},
    "int4-weight-only": {"Linear int4/none": _BLOCKS, "Linear int8/none": _VOCODER},
    "fp16": {"Linear float16/float16": _BLOCKS + _VOCODER},
    "bf16": {"Linear bfloat16/bfloat16": _BLOCKS + _VOCODER},
}


def test_the_vocoders_first_convolution_is_kept_for_a_reason(tiny_f5: F5Model) -> None:
    """Rounding its weights alone costs more than all that the recipe rounds."""
    shipped = find_recipe("f5-tts", "int8-weight-only")
    rule = shipped.component[0].model_copy(update={"match": "vocoder.backbone.embed"})
    alone = shipped.model_copy(update={"component": (rule,)})
    original = tiny_f5.synthesize("good day", seed=0).samples
    models = (compress(tiny_f5, "int8-weight-only", recipe=r) for r in (shipped, alone))
    kept, rounded = (
        float(np.square(model.synthesize("good day", seed=0).samples - original).mean())
        for model in models
    )
    assert rounded > 4 * kept


@pytest.mark.parametrize("scheme", _SCHEMES)
def test_the_manifest_counts_what_is_there(tiny_f5: F5Model, tmp_path: Path, scheme: str) -> None:
    from tts_compress.torch.layers.base import CompressedLayer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TTSCompressWarning)  # the processor has no such arithmetic
        saved = compress(tiny_f5, scheme).save(tmp_path / scheme)
    model = load(saved)
    assert isinstance(model, F5Model)
    assert model.manifest is not None
    counts = model.manifest.counts
    assert {k: v for k, v in counts.items() if k in _SCHEMES[scheme]} == _SCHEMES[scheme]
    held = [m for m in model.root().modules() if isinstance(m, CompressedLayer)]
    assert len(held) == sum(_SCHEMES[scheme].values())

    # Weights by weights: those of the layers that the recipe names, in the model it was made of.
    original = dict(tiny_f5.root().named_parameters())
    named = [name for name in original if name.endswith(".weight") and original[name].dim() == 2]
    named = [n for n in named if ".transformer_blocks." in n or ".pwconv" in n]
    named = [n for n in named if n.startswith(("transformer.transformer_blocks", "vocoder."))]
    exchanged = [x for x in model.manifest.layers if x.weights != "float32"]
    exchanged = [x for x in exchanged if f"{x.module}.weight" in named]
    assert sum(x.parameters for x in exchanged) == sum(original[n].numel() for n in named)

    assert model.manifest.size_bytes == (saved / "model.safetensors").stat().st_size
    (weights,) = model.files().weights
    assert weights.stat().st_size == model.manifest.size_bytes

    prompt = {"ref_file": str(saved / "reference.wav"), "ref_text": "one two three four five six."}
    audio, rate, _ = model.api.infer(
        **prompt, gen_text="good day", nfe_step=4, seed=1, show_info=str, progress=None
    )
    assert rate == 24_000
    assert np.isfinite(audio).all()
    assert np.abs(audio).max() > 1e-4
