"""Pocket-TTS keeps what every system in torch promises; its manifest agrees with the object."""

import pytest

from tests.families.case import Commanded, FamilyCase, SchemePromise
from tests.families.conformance import FamilyPromises


def _promise(snr_db: float, share: float) -> SchemePromise:
    return SchemePromise(snr_db=snr_db, share=share)


@pytest.mark.slow
class TestPocket(FamilyPromises):
    """Ratios are 6 dB below what is measured."""

    case = FamilyCase(
        family="pocket-tts",
        model="tiny_pocket",
        text="call",
        slow=True,
        schemes={
            "fp16": _promise(52, 0.56),
            "bf16": _promise(34, 0.56),
            "int8-weight-only": _promise(32, 0.4),
            "int8-dynamic": _promise(25, 0.4),
            "int8-static": _promise(25, 0.4),
            "int8": _promise(25, 0.4),
            "int4-weight-only": _promise(14, 0.4),
        },
        saved=("config.yaml", "model.safetensors", "reference.wav", "tokenizer.json"),
        commanded=Commanded(
            spec=lambda request: f"pocket-tts:{request.getfixturevalue('tiny_pocket_dir')}",
            prompt='[prompt]\naudio = "voice.wav"\n',
            settings={"voice": "voice.wav"},
            timed=("flow_lm.transformer", "mimi.decoder"),
        ),
    )
