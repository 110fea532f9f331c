"""Voices of transformers keep what every system in torch promises."""

from collections.abc import Callable
from dataclasses import replace
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
_DRAWN = tuple(name for name in _SPECTROGRAMS_DB if name != "int4-inc")
"""Schemes of voices whose tokens are drawn, which leave no sound to compare."""

_TEXTS = ("Hello there.", "Shut the gate.")

_UNTRIED = frozenset({"int8-dynamic"})
"""The same as `int8` for these."""


def _checked(voice: str) -> Callable[..., None]:
    def check(request: pytest.FixtureRequest, model: Any, again: Any, scheme: str) -> None:
        del request, model, scheme
        for layer in again.manifest.layers:
            if layer.module.startswith(_IN_FLOATS[voice]):
                assert f"{layer.weights}/{layer.activations}" in {"float16/none", "float32/none"}

    return check


def _check_bark(request: pytest.FixtureRequest, model: Any, again: Any, scheme: str) -> None:
    del request, model
    wanted = {"int8": "dynamic", "int8-static": "static", "fp16": "float16", "bf16": "bfloat16"}
    layers = {x.module: x.activations for x in again.manifest.layers}
    for part in ("semantic", "coarse_acoustics", "fine_acoustics"):
        assert layers[f"{part}.layers.0.attn.att_proj"] == wanted.get(scheme, "none")


def _check_csm(request: pytest.FixtureRequest, model: Any, again: Any, scheme: str) -> None:
    """Heads and tables keep their arithmetic; tokens that it drew leave no sound to compare."""
    del request, model
    wanted = {"int8": "dynamic", "int8-static": "static", "fp16": "float16", "bf16": "bfloat16"}
    layers = {x.module: x.activations for x in again.manifest.layers}
    for part in ("backbone_model", "depth_decoder.model"):
        assert layers[f"{part}.layers.0.self_attn.q_proj"] == wanted.get(scheme, "none")
    if scheme in {"int8", "int8-static", "bf16"}:  # its pauses would hiss
        convolutions = [name for name in layers if "decoder_seanet" in name]
        assert {layers[name] for name in convolutions} == {"none"}
    assert layers["lm_head"] == layers["embed_text_tokens"] == "none"


def _check_dia(request: pytest.FixtureRequest, model: Any, again: Any, scheme: str) -> None:
    """Heads, tables and codes keep their arithmetic, and so do convolutions, which would hiss."""
    del request, model
    wanted = {"int8": "dynamic", "int8-static": "static", "fp16": "float16", "bf16": "bfloat16"}
    layers = {x.module: x.activations for x in again.manifest.layers}
    for part in ("encoder.layers.0.self_attention", "decoder.layers.1.cross_attention"):
        assert layers[f"model.{part}.q_proj"] == wanted.get(scheme, "none")
    kept = [name for name in layers if name.startswith(("logits", "vocoder.q", "model.decoder.e"))]
    assert len(kept) >= 5
    assert {layers[name] for name in kept} == {"none"}
    if scheme in {"int8", "int8-static", "bf16"}:
        assert layers["vocoder.decoder.conv1"] == "none"


def _check_latents(request: pytest.FixtureRequest, model: Any, again: Any, scheme: str) -> None:
    """The end, and where latents come in and go out, keep their arithmetic, and so do pauses."""
    del request, model
    wanted = {"int8": "dynamic", "int8-static": "static", "fp16": "float16", "bf16": "bfloat16"}
    layers = {x.module: x.activations for x in again.manifest.layers}
    for part in ("model.layers.1.self_attn.q_proj", "flow_head.layers.0.fc1"):
        assert layers[part] == wanted.get(scheme, "none")
    kept = (
        "eos_head",
        "model.embed_tokens",
        "model.audio_latent_proj",
        "flow_head.final_layer.proj",
    )
    assert {layers[name] for name in kept} == {"none"}
    if scheme in {"int8", "int8-static", "bf16"}:
        assert layers["vocoder.decoder.decoder_seanet.layers.0.conv"] == "none"


def _check_higgs(request: pytest.FixtureRequest, model: Any, again: Any, scheme: str) -> None:
    """Heads, tables and codes keep their arithmetic, and so do convolutions, which would hiss."""
    del request, model
    wanted = {"int8": "dynamic", "int8-static": "static", "fp16": "float16", "bf16": "bfloat16"}
    layers = {x.module: x.activations for x in again.manifest.layers}
    for part in ("self_attn.q_proj", "mlp.up_proj", "audio_mlp.down_proj"):
        assert layers[f"model.layers.1.{part}"] == wanted.get(scheme, "none")
    ends = ("audio_lm_head", "model.embed_", "vocoder.quantizer", "vocoder.fc")
    kept = [name for name in layers if name.startswith(ends)]
    assert len(kept) == 12
    assert {layers[name] for name in kept} == {"none"}
    if scheme in {"int8", "int8-static", "bf16"}:
        assert layers["vocoder.acoustic_decoder.conv1"] == "none"


def _check_vibevoice(request: pytest.FixtureRequest, model: Any, again: Any, scheme: str) -> None:
    """The end, and where latents come in and go out, keep their arithmetic, and so do pauses."""
    del request, model
    wanted = {"int8": "dynamic", "int8-static": "static", "fp16": "float16", "bf16": "bfloat16"}
    layers = {x.module: x.activations for x in again.manifest.layers}
    for part in ("language_model.layers.1.mlp.up_proj", "diffusion_head.layers.0.linear"):
        assert layers[f"model.{part}"] == wanted.get(scheme, "none")
    heard = ("audio_tower.decoder", "semantic_tokenizer_encoder")
    for part in heard:
        linear = f"model.{part}.conv_layers.1.stage.0.ffn.linear1"
        assert layers[linear] == wanted.get(scheme, "none")
    kept = ["lm_head", "model.multi_modal_projector.linear_2", "model.semantic_connector.linear_1"]
    if scheme in {"int8", "int8-static", "bf16"}:
        kept += [f"model.{part}.stem.conv.conv" for part in heard]
    assert {layers[name] for name in kept} == {"none"}


def _commanded(folder: str, *timed: str, texts: tuple[str, str] | None = None) -> Commanded:
    return Commanded(
        spec=lambda request: f"transformers:{request.getfixturevalue(folder)}",
        texts=texts,
        language="eng",
        timed=timed,
    )


class TestVits(FamilyPromises):
    """Every id keeps its duration."""

    case = FamilyCase(
        family="transformers",
        model="vits",
        text="call at ten",
        schemes={
            "fp16": SchemePromise(snr_db=50, share=0.62),
            "bf16": SchemePromise(snr_db=34, share=0.62),
            "int8": SchemePromise(snr_db=21, share=0.62),
            "int8-dynamic": SchemePromise(snr_db=21, share=0.62),
            "int8-static": SchemePromise(snr_db=17, share=0.62),
            "int8-weight-only": SchemePromise(snr_db=27, share=0.62),
            "int4-weight-only": SchemePromise(snr_db=27, share=0.62),
        },
        seeds=(0, 1),
        slow=True,
        check=_checked("vits"),
        commanded=_commanded("vits_dir", "flow", "decoder", texts=_TEXTS),
    )


class TestSpeechT5(FamilyPromises):
    """Its dropout is the noise."""

    case = FamilyCase(
        family="transformers",
        model="speecht5",
        text="at ten",
        schemes={name: SchemePromise(snr_db=db) for name, db in _SPECTROGRAMS_DB.items()},
        slow=True,
        untried=_UNTRIED,
        check=_checked("speecht5"),
        commanded=_commanded("speecht5_dir"),
    )


class TestFastSpeech2(FamilyPromises):
    """It speaks without noise."""

    case = FamilyCase(
        family="transformers",
        model="fastspeech2",
        text="call at ten",
        schemes={name: SchemePromise(snr_db=db) for name, db in _SPECTROGRAMS_DB.items()},
        slow=True,
        noisy=False,
        untried=_UNTRIED,
        check=_checked("fastspeech2"),
        commanded=_commanded("fastspeech2_dir"),
    )


class TestBark(FamilyPromises):
    """Its codec's recurrent layers keep FP32; what it draws leaves no sound to compare."""

    case = FamilyCase(
        family="transformers",
        model="bark",
        text="call at ten",
        schemes={name: SchemePromise(share=0.75) for name in _DRAWN},
        slow=True,
        untried=_UNTRIED,
        check=_check_bark,
        commanded=_commanded("bark_dir", "semantic"),
    )


class TestCsm(FamilyPromises):
    """Its heads of the other codebooks are one tensor, which keeps FP32."""

    case = FamilyCase(
        family="transformers",
        model="csm",
        text="call at ten",
        schemes={name: SchemePromise(share=0.8) for name in _DRAWN},
        slow=True,
        untried=_UNTRIED,
        check=_check_csm,
        commanded=_commanded("csm_dir", "backbone_model", "depth_decoder"),
    )


class TestDia(FamilyPromises):
    """Its codec is a model of its own; tokens that it draws leave no sound to compare."""

    case = FamilyCase(
        family="transformers",
        model="dia",
        text="call at ten",
        schemes={
            name: SchemePromise(share=0.8)
            for name in (
                *("fp16", "bf16", "int8", "int8-static", "int8-weight-only"),
                *("int4-weight-only", "int4-gptq"),
            )
        },
        slow=True,
        untried=_UNTRIED,
        check=_check_dia,
        commanded=_commanded("dia_dir"),
    )


class TestPocket(FamilyPromises):
    """Its codec is a model of its own, and its voice is a recording."""

    case = FamilyCase(
        family="transformers",
        model="pocket",
        text="call at ten",
        schemes={name: SchemePromise(snr_db=db, share=0.8) for name, db in _LATENTS_DB.items()},
        slow=True,
        untried=_UNTRIED,
        check=_check_latents,
        commanded=replace(
            _commanded("pocket_dir", "model.layers", "flow_head", texts=_TEXTS),
            language=None,
            prompt='[prompt]\naudio = "voice.wav"\n',
        ),
    )


class TestPhonon(FamilyPromises):
    """As Pocket-TTS, in the voice of stored latents."""

    case = replace(
        TestPocket.case,
        model="phonon",
        commanded=replace(
            _commanded("phonon_dir", "model.layers", "flow_head", texts=_TEXTS), language=None
        ),
    )


class TestHiggs(FamilyPromises):
    """Its codec is a model of its own; tokens that it draws leave no sound to compare."""

    case = FamilyCase(
        family="transformers",
        model="higgs",
        text="call at ten",
        schemes={name: SchemePromise(share=0.8) for name in _DRAWN},
        seeds=(0, 1),
        slow=True,
        untried=_UNTRIED,
        check=_check_higgs,
        commanded=replace(_commanded("higgs_dir", "model.layers"), language=None),
    )


class TestVibeVoice(FamilyPromises):
    """It hears what it said, and ends where it is stopped."""

    case = FamilyCase(
        family="transformers",
        model="vibevoice",
        text="call at ten",
        schemes={name: SchemePromise(snr_db=db, share=0.8) for name, db in _VIBEVOICE_DB.items()},
        slow=True,
        untried=_UNTRIED,
        check=_check_vibevoice,
        commanded=replace(
            _commanded(
                "vibevoice_dir", "model.language_model", "model.diffusion_head", texts=_TEXTS
            ),
            language=None,
        ),
    )
