"""Voices of transformers keep what every system in torch promises."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.families.case import Commanded, FamilyCase, SchemePromise
from tests.families.conformance import FamilyPromises

_IN_FLOATS = {
    "vits": ("text_encoder.e", "duration_predictor.", "embed_speaker"),
    "speecht5": ("speecht5.decoder.prenet", "speecht5.encoder.prenet", "speech_decoder_postnet.p"),
    "fastspeech2": ("model.encoder.", "model.duration_predictor."),
}
"""Layers that decide durations, and others that are to be exact."""

# 6 dB below what is measured.
_VITS_DB = {
    "fp16": 50,
    "bf16": 34,
    "int8": 21,
    "int8-dynamic": 21,
    "int8-static": 17,
    "int8-weight-only": 27,
    "int4-weight-only": 27,
}
_SPECTROGRAMS_DB = {
    "fp16": 50,
    "bf16": 31,
    "int8": 22,
    "int8-static": 20,
    "int8-weight-only": 25,
    "int4-weight-only": 11,
    "int4-gptq": 11,
    "int4-inc": 11,
}
_LATENTS_DB = {
    "fp16": 56,
    "bf16": 39,
    "int8": 32,
    "int8-static": 29,
    "int8-weight-only": 31,
    "int4-weight-only": 20,
    "int4-gptq": 28,
}
_VIBEVOICE_DB = dict(zip(_LATENTS_DB, (55, 38, 26, 25, 29, 11, 14), strict=True))
_DRAWN = {name: SchemePromise(share=0.8) for name in _LATENTS_DB if name != "int4-gptq"}
"""Promises of voices whose tokens are drawn, which leave no sound to compare."""

_UNTRIED = frozenset({"int8-dynamic"})
"""The same as `int8` for these."""


def _checked(voice: str) -> Callable[..., None]:
    def check(request: pytest.FixtureRequest, model: Any, again: Any, scheme: str) -> None:
        del request, model, scheme
        for layer in again.manifest.layers:
            if layer.module.startswith(_IN_FLOATS[voice]):
                assert f"{layer.weights}/{layer.activations}" in {"float16/none", "float32/none"}

    return check


_ARITHMETIC = {"int8": "dynamic", "int8-static": "static", "fp16": "float16", "bf16": "bfloat16"}
"""Types of activations by schemes; others leave FP32."""


def _changing(*changed: str, kept: str = "", heard: str = "") -> Callable[..., None]:
    """Return a check of layers whose arithmetic schemes change, and of those that keep theirs.

    Args:
        changed: Names of layers.
        kept: Beginnings of names, such as of heads, tables and codes.
        heard: Beginnings of names of convolutions, in which pauses would hiss.
    """

    def check(request: pytest.FixtureRequest, model: Any, again: Any, scheme: str) -> None:
        del request, model
        layers = {x.module: x.activations for x in again.manifest.layers}
        for name in changed:
            assert layers[name] == _ARITHMETIC.get(scheme, "none")
        hissing = heard if scheme in {"int8", "int8-static", "bf16"} else ""
        for start in f"{kept} {hissing}".split():
            assert {layers[n] for n in layers if n.startswith(start)} == {"none"}, start

    return check


def _case(
    model: str, schemes: Mapping[str, SchemePromise], *timed: str, texts: bool = False, **more: Any
) -> FamilyCase:
    """Return a case; `texts` where the voice is evaluated from the command line, too."""
    told: dict[str, Any] = more.pop("told", {}) | ({} if texts else {"texts": None})
    commanded = Commanded(
        spec=lambda request: f"transformers:{request.getfixturevalue(f'{model}_dir')}",
        timed=timed,
        **told,
    )
    stated = {"text": "call at ten", "untried": _UNTRIED, "commanded": commanded, **more}
    return FamilyCase(family="transformers", model=model, schemes=schemes, slow=True, **stated)


def _promises(db: Mapping[str, float], share: float = 0.7) -> dict[str, SchemePromise]:
    return {name: SchemePromise(snr_db=bound, share=share) for name, bound in db.items()}


class TestVits(FamilyPromises):
    """Every id keeps its duration."""

    case = _case(
        "vits",
        _promises(_VITS_DB, share=0.62),
        *("flow", "decoder"),
        texts=True,
        told={"language": "eng"},
        untried=frozenset(),
        check=_checked("vits"),
    )


class TestSpeechT5(FamilyPromises):
    """Its dropout is the noise."""

    case = _case("speecht5", _promises(_SPECTROGRAMS_DB), text="at ten", check=_checked("speecht5"))


class TestFastSpeech2(FamilyPromises):
    """It speaks without noise."""

    case = _case(
        "fastspeech2", _promises(_SPECTROGRAMS_DB), noisy=False, check=_checked("fastspeech2")
    )


@pytest.mark.slow
class TestBark(FamilyPromises):
    """Its codec's recurrent layers keep FP32; what it draws leaves no sound to compare."""

    case = _case(
        "bark",
        _DRAWN,
        check=_changing(
            "semantic.layers.0.attn.att_proj",
            "coarse_acoustics.layers.0.attn.att_proj",
            "fine_acoustics.layers.0.attn.att_proj",
        ),
    )


class TestCsm(FamilyPromises):
    """Its heads of the other codebooks are one tensor, which keeps FP32."""

    case = _case(
        "csm",
        _DRAWN | {"int4-gptq": SchemePromise(share=0.8)},
        *("backbone_model", "depth_decoder"),
        check=_changing(
            "backbone_model.layers.0.self_attn.q_proj",
            "depth_decoder.model.layers.0.self_attn.q_proj",
            kept="lm_head embed_text_tokens",
            heard="codec_model.decoder.decoder_seanet",
        ),
    )


@pytest.mark.slow
class TestDia(FamilyPromises):
    """Its codec is a model of its own; tokens that it draws leave no sound to compare."""

    case = _case(
        "dia",
        _DRAWN,
        check=_changing(
            "model.encoder.layers.0.self_attention.q_proj",
            "model.decoder.layers.1.cross_attention.q_proj",
            kept="logits vocoder.q model.decoder.e",
            heard="vocoder.decoder.conv1",
        ),
    )


_CHECK_LATENTS = _changing(
    "model.layers.1.self_attn.q_proj",
    "flow_head.layers.0.fc1",
    kept="eos_head model.embed_tokens model.audio_latent_proj flow_head.final_layer.proj",
    heard="vocoder.decoder.decoder_seanet.layers.0.conv",
)


class TestPocket(FamilyPromises):
    """Its codec is a model of its own, and its voice is a recording."""

    case = _case(
        "pocket",
        _promises(_LATENTS_DB, share=0.8),
        *("model.layers", "flow_head"),
        texts=True,
        told={"prompt": '[prompt]\naudio = "voice.wav"\n'},
        check=_CHECK_LATENTS,
    )


@pytest.mark.slow
class TestPhonon(FamilyPromises):
    """As Pocket-TTS, in the voice of stored latents; each kind of arithmetic is tried once."""

    case = _case(
        "phonon",
        _promises({name: _LATENTS_DB[name] for name in ("fp16", "int8")}, share=0.8),
        texts=True,
        untried=_UNTRIED | (_LATENTS_DB.keys() - {"fp16", "int8", "int4-gptq"}),
        check=_CHECK_LATENTS,
    )


@pytest.mark.slow
class TestHiggs(FamilyPromises):
    """Its codec is a model of its own; tokens that it draws leave no sound to compare."""

    case = _case(
        "higgs",
        _DRAWN,
        check=_changing(
            "model.layers.1.self_attn.q_proj",
            "model.layers.1.mlp.up_proj",
            "model.layers.1.audio_mlp.down_proj",
            kept="audio_lm_head model.embed_ vocoder.quantizer vocoder.fc",
            heard="vocoder.acoustic_decoder.conv1",
        ),
    )


@pytest.mark.slow
class TestVibeVoice(FamilyPromises):
    """It hears what it said, and ends where it is stopped."""

    case = _case(
        "vibevoice",
        _promises(_VIBEVOICE_DB, share=0.8),
        *("model.language_model", "model.diffusion_head"),
        texts=True,
        check=_changing(
            "model.language_model.layers.1.mlp.up_proj",
            "model.diffusion_head.layers.0.linear",
            "model.audio_tower.decoder.conv_layers.1.stage.0.ffn.linear1",
            "model.semantic_tokenizer_encoder.conv_layers.1.stage.0.ffn.linear1",
            kept="lm_head model.multi_modal_projector.linear_2 model.semantic_connector.linear_1",
            heard="model.audio_tower.decoder.stem.conv.conv "
            "model.semantic_tokenizer_encoder.stem.conv.conv",
        ),
    )
