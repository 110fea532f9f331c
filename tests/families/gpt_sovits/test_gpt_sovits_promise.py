"""GPT-SoVITS keeps what every system in torch promises, and upstream's own `run` speaks with it."""

from typing import Any

import numpy as np
import pytest

from tests.families.case import Commanded, Deployed, FamilyCase, Learning, SchemePromise
from tests.families.conformance import FamilyPromises

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
_OBJECTIVES = ("t2s", "vits.enc_p", "vits.flow", "vits.dec")


def _promise(snr_db: float | None, agreement: float, share: float = 0.35) -> SchemePromise:
    return SchemePromise(snr_db=snr_db, agreement=agreement, share=share)


def _check(request: pytest.FixtureRequest, model: Any, again: Any, scheme: str) -> None:
    """Compare the manifest with the layers that the recipe names; speak as upstream's users do."""
    from torch import nn

    assert again.options == model.options
    found = {x.module: f"{x.weights}/{x.activations}" for x in again.manifest.layers}
    blocks = [
        name
        for name, module in model.root().named_modules()
        if isinstance(module, nn.Linear) and name.startswith("t2s.t2s_transformer.")
    ]
    assert len(blocks) == 2 * 4
    assert {found[name] for name in blocks} == {_KINDS[scheme][0]}
    assert found["vits.dec.ups.0"] == found["vits.dec.resblocks.0.convs1.0"] == _KINDS[scheme][1]
    assert found["t2s.ar_predict_layer"] == found["vits.ssl_proj"] == "float16/none"
    assert not any("enc_q" in name for name in found)

    official, tts = request.getfixturevalue("official"), again.tts
    assert isinstance(tts, official.inference.TTS)
    assert type(tts).run is official.inference.TTS.run
    inputs = {
        "text": "the door was open",
        "text_lang": "en",
        "prompt_lang": "en",
        "prompt_text": again.prompt.text,
        "ref_audio_path": tts.prompt_cache["ref_audio_path"],
        "streaming_mode": False,
    }
    with official.running():
        rate, wave = next(tts.run(inputs))
        pieces = [piece for _, piece in tts.run(inputs | {"streaming_mode": True})]
    assert rate == 32000
    assert np.abs(wave).max() > 300
    assert np.abs(np.concatenate(pieces)).max() > 300


class TestGptSovits(FamilyPromises):
    """Ratios are five decibels below what is measured on the tiny model."""

    case = FamilyCase(
        family="gpt-sovits",
        model="tiny",
        schemes={
            "int8": _promise(50, 0.95),
            "int8-dynamic": _promise(50, 0.95),
            "int8-static": _promise(38, 0.95),
            "int8-weight-only": _promise(37, 0.95),
            "int4-weight-only": _promise(None, 0.6),
            "fp16": _promise(46, 0.99, 0.5),
            "bf16": _promise(29, 0.97, 0.5),
        },
        saved_again=False,  # not promised until now
        check=_check,
        learning=Learning(
            texts=("please call at ten", "the door was open", "a quiet day", "who are you"),
            objectives=_OBJECTIVES,
            learned={"t2s/kl": 0.8},
            stops=(("train vits.flow", 3),),
            deployed={
                "int8-qat": Deployed(objectives=_OBJECTIVES, snr_db=30, layers_db=60, loss=0.1),
                "int4-weight-only": Deployed(objectives=_OBJECTIVES, snr_db=30, loss=0.1),
            },
            changes={"steps": 6, "held_out_every": 3, "batch_size": 2},
            unheard=("bert is not called", "hubert gets the same inputs for every text"),
            slow=True,
        ),
        commanded=Commanded(
            spec=lambda request: (
                f"gpt-sovits:{request.getfixturevalue('tiny_config')}?text_lang=en&prompt_lang=en"
            ),
            texts=None,  # its evaluations run upstream's own text frontends
            timed=("t2s", "vits.dec"),
        ),
    )
