"""The manifest of a compressed Parler-TTS model agrees with the file and the official object."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress.compression import compress
from tts_compress.errors import TTSCompressWarning
from tts_compress.models import load
from tts_compress.models.parler.model import ParlerModel
from tts_compress.recipes.family import schemes_of

if TYPE_CHECKING:
    from pathlib import Path

_KINDS = {
    "int8": "int8/dynamic",
    "int8-dynamic": "int8/dynamic",
    "int8-static": "int8/static",
    "int8-weight-only": "int8/none",
    "int4-weight-only": "int4/none",
    "fp16": "float16/float16",
    "bf16": "bfloat16/bfloat16",
}


@pytest.mark.parametrize("scheme", _KINDS)
def test_the_manifest_counts_what_is_there(
    tiny_parler: ParlerModel, tmp_path: Path, scheme: str
) -> None:
    import torch
    from torch import nn

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TTSCompressWarning)  # the processor has no such arithmetic
        saved = compress(tiny_parler, scheme).save(tmp_path / scheme)
    model = load(saved)
    assert isinstance(model, ParlerModel)
    assert model.manifest is not None
    blocks = ("decoder.model.decoder.layers.", "text_encoder.encoder.block.")
    layers = {
        name: module
        for name, module in tiny_parler.root().named_modules()
        if isinstance(module, nn.Linear) and name.startswith(blocks)
    }
    if scheme == "fp16":  # flan-T5's output projections overflow
        layers = {name: m for name, m in layers.items() if not name.endswith(".wo")}
    if scheme == "int4-weight-only":  # of what is too narrow for a group of 64 nothing changes
        layers = {name: m for name, m in layers.items() if m.in_features % 64 == 0}
    found = {x.module: x for x in model.manifest.layers if x.module in layers}
    assert found.keys() == layers.keys()
    wanted = tuple(_KINDS[scheme].split("/"))
    assert {(x.weights, x.activations) for x in found.values()} == {wanted}
    parameters = sum(module.weight.numel() for module in layers.values())
    assert sum(x.parameters for x in found.values()) == parameters
    assert model.manifest.counts[f"Linear {_KINDS[scheme]}"] >= len(layers)
    assert model.manifest.size_bytes == (saved / "model.safetensors").stat().st_size

    root: Any = model.root()
    ids = torch.arange(4, 10).unsqueeze(0)
    torch.manual_seed(0)
    audio = root.generate(input_ids=ids, prompt_input_ids=ids, max_length=40, do_sample=True)
    assert np.isfinite(audio.numpy()).all()
    assert audio.abs().max() > 0


def test_every_scheme_is_tried() -> None:
    # Training, and algorithms that choose codes, have tests of their own.
    others = {"int8-qat", "int4-gptq", "int4-inc"}
    assert set(_KINDS) == set(schemes_of("parler-tts")) - others
