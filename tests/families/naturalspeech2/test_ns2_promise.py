"""NaturalSpeech2 keeps what every system in torch promises."""

from typing import Any

import numpy as np
import pytest

from tests.families.case import Commanded, Deployed, FamilyCase, Learning, SchemePromise
from tests.families.conformance import FamilyPromises
from tts_compress.compression import compress
from tts_compress.models.naturalspeech2.model import NaturalSpeech2Model

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
_OBJECTIVES = ("prior_encoder.encoder", "diffusion.diff_estimator", "codec.decoder")


def _check(request: pytest.FixtureRequest, model: Any, again: Any, scheme: str) -> None:
    """Speak in upstream's own inference code."""
    del request, model, scheme
    heard = again.open_runtime(threads=1).speak(_TEXT).samples
    assert np.isfinite(heard).all()
    assert np.abs(heard).max() > 0.05


class TestNaturalSpeech2(FamilyPromises):
    """Its evaluation also names the clone."""

    case = FamilyCase(
        family="naturalspeech2",
        model="tiny_ns2",
        text=_TEXT,
        schemes={
            scheme: SchemePromise(snr_db=_LIMITS[scheme], share=1.0, counts=counts)
            for scheme, counts in _SCHEMES.items()
        },
        check=_check,
        saved=("model.safetensors", "reference.wav", "settings.json"),
        learning=Learning(
            texts=("good day", "hello there", "hello good day", "there"),
            objectives=_OBJECTIVES,
            learned={"diffusion.diff_estimator/mse": 0.8},
            stops=(("train diffusion.diff_estimator", 3),),
            deployed={
                "int8-qat": Deployed(objectives=_OBJECTIVES, snr_db=40, layers_db=60),
                "int4-weight-only": Deployed(objectives=_OBJECTIVES, snr_db=60),
            },
            changes={"steps": 6, "held_out_every": 3, "batch_size": 2},
            unheard=("prompt_encoder gets the same inputs for every text",),
            slow=True,
        ),
        commanded=Commanded(
            spec=lambda request: (
                f"naturalspeech2:{request.getfixturevalue('tiny_ns2_dir')}?inference_step=4"
            ),
            options=lambda request: ["--checkout", str(request.getfixturevalue("amphion"))],
            texts=("Hello there.", "Good day."),
            settings={"recording": "reference.wav"},
            memory=1.0,  # its codec has the published size
            timed=("diffusion.diff_estimator", "codec.decoder"),
        ),
    )


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
    # It chooses codes; its recurrent layer stays as it is.
    weights = {(x.operator == "LSTM", x.weights) for x in encoder}
    assert weights == {(False, "float16"), (True, "float32")}
