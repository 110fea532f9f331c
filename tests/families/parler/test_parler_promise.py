"""Parler-TTS keeps what every system in torch promises; its manifest agrees with the object."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.case import Commanded, Deployed, FamilyCase, Learning, SchemePromise
from tests.families.conformance import FamilyPromises
from tts_compress import find_recipe, load
from tts_compress.models.parler.model import ParlerOptions
from tts_compress.progress import Silent

_TEXTS = ("please call at ten", "the door was open", "a quiet day", "who are you")
_OBJECTIVES = ("text_encoder", "decoder", "audio_encoder.decoder")
_KINDS = {
    "int8": "int8/dynamic",
    "int8-dynamic": "int8/dynamic",
    "int8-static": "int8/static",
    "int8-weight-only": "int8/none",
    "int4-weight-only": "int4/none",
    "fp16": "float16/float16",
    "bf16": "bfloat16/bfloat16",
}


def _promise(kl_nats: float, agreement: float = 0.9) -> SchemePromise:
    return SchemePromise(kl_nats=kl_nats, agreement=agreement, share=0.62)


def _check(request: pytest.FixtureRequest, model: Any, again: Any, scheme: str) -> None:
    """Compare the manifest with all linear layers of both transformers; generate officially."""
    import torch
    from torch import nn

    del request
    blocks = ("decoder.model.decoder.layers.", "text_encoder.encoder.block.")
    layers = {
        name: module
        for name, module in model.root().named_modules()
        if isinstance(module, nn.Linear) and name.startswith(blocks)
    }
    if scheme == "fp16":  # flan-T5's output projections overflow
        layers = {name: m for name, m in layers.items() if not name.endswith(".wo")}
    if scheme == "int4-weight-only":  # of what is too narrow for a group of 64 nothing changes
        layers = {name: m for name, m in layers.items() if m.in_features % 64 == 0}
    found = {
        x.module: (f"{x.weights}/{x.activations}", x.parameters)
        for x in again.manifest.layers
        if x.module in layers
    }
    assert found == {name: (_KINDS[scheme], m.weight.numel()) for name, m in layers.items()}
    assert again.manifest.counts[f"Linear {_KINDS[scheme]}"] >= len(layers)

    ids = torch.arange(4, 10).unsqueeze(0)
    torch.manual_seed(0)
    audio = again.root().generate(
        input_ids=ids, prompt_input_ids=ids, max_length=40, do_sample=True
    )
    assert np.isfinite(audio.numpy()).all()
    assert audio.abs().max() > 0


def _spec(request: pytest.FixtureRequest) -> str:
    return f"parler-tts:{request.getfixturevalue('tiny_parler_dir')}"


class TestParler(FamilyPromises):
    """Divergences are three to five times what is measured on the tiny model."""

    case = FamilyCase(
        family="parler-tts",
        model="tiny_parler",
        schemes={
            "fp16": _promise(1e-5),
            "bf16": _promise(4e-4),
            "int8-weight-only": _promise(2e-3),
            "int8-dynamic": _promise(4e-3),
            "int8": _promise(4e-3),
            "int8-static": SchemePromise(share=0.62),
            "int4-weight-only": _promise(0.1, 0.75),
        },
        seeds=(0, None),
        configured=lambda model: model.with_options(
            ParlerOptions(max_length=100, min_new_tokens=80)
        ),
        check=_check,
        learning=Learning(
            texts=_TEXTS,
            objectives=_OBJECTIVES,
            learned={"decoder/kl": 0.8, "text_encoder/mse": 0.8},
            stops=(("train decoder", 13),),
            deployed={
                # The tiny codec has too few channels for integers to be worth it.
                "int8-qat": Deployed(objectives=_OBJECTIVES[:2], snr_db=60),
                "int4-weight-only": Deployed(objectives=_OBJECTIVES, snr_db=38),
            },
            model="wide",
        ),
        commanded=Commanded(
            spec=_spec,
            prompt='[prompt]\ndescription = "a bright high voice"\n',
            settings={"description": "a bright high voice"},
            timed=("decoder", "audio_encoder"),
        ),
    )


@pytest.fixture(scope="module")
def wide(make_parler_dir: Callable[..., Path]) -> Any:
    """Return a tiny model whose layers are as wide as a group of four-bit weights."""
    folder = make_parler_dir("wide", decoder_width=64, encoder_width=64)
    model: Any = load(f"parler-tts:{folder}")
    return model.with_options(ParlerOptions(max_length=30, min_new_tokens=20))


def test_only_scores_of_speech_are_learned_from(wide: Any) -> None:
    """The tiny decoder has the text's positions before those of speech."""
    pytest.importorskip("accelerate")
    from tts_compress.qat.prepare import prepare_qat
    from tts_compress.qat.task import compared_outputs
    from tts_compress.qat.training import record_calls

    prepared = prepare_qat(wide.root(), find_recipe("parler-tts", "int4-weight-only"))
    seeded = [(text, number) for number, text in enumerate(_TEXTS[:2])]
    datasets = record_calls(wide, prepared.module, seeded, progress=Silent())
    encoder, decoder, _ = datasets
    assert [dataset.objective.name for dataset in datasets] == list(_OBJECTIVES)
    (call,) = decoder.train
    tokens = wide.generate_tokens(_TEXTS[0], seed=0)
    (scores,) = compared_outputs(decoder.objective, call.output, call.keywords)
    assert call.output.logits.shape[-2] > scores.shape[-2] == len(tokens.ids) - 1
    meant = wide.logits(_TEXTS[0], tokens)
    np.testing.assert_allclose(scores.numpy().transpose(1, 0, 2), meant, atol=1e-5)
    (heard,) = encoder.train
    assert heard.keywords["input_ids"].shape[1] == len(_TEXTS[0]) + 1
