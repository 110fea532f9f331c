"""NaturalSpeech2 keeps what every system in torch promises."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.case import Commanded, Deployed, FamilyCase, Learning, SchemePromise
from tests.families.conformance import FamilyPromises, write_suite
from tts_compress.artifact import read_manifest
from tts_compress.cli import main
from tts_compress.compression import compress
from tts_compress.models.base import Call, Objective
from tts_compress.models.naturalspeech2.model import NaturalSpeech2Model
from tts_compress.models.naturalspeech2.network import CODEC
from tts_compress.qat.task import compared_outputs, repeatable
from tts_compress.qat.training import CallRecorder

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

_INTEGERS = {"Conv1d int8/dynamic": _CONVOLUTIONS, "Linear int8/dynamic": _LINEAR, **_OTHERS}
_SCHEMES: dict[str, dict[str, int]] = {
    "int8": _INTEGERS,
    "int8-dynamic": _INTEGERS,
    "int8-static": {"Conv1d int8/static": _CONVOLUTIONS, "Linear int8/static": _LINEAR, **_OTHERS},
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


_GOOD_DAY = "good day."


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory, tiny_ns2: NaturalSpeech2Model) -> Path:
    return compress(tiny_ns2, "int8").save(tmp_path_factory.mktemp("artifact") / "small")


def _names(path: Path) -> set[str]:
    from tts_compress.torch.layers.checkpoint import TensorFile

    return set(TensorFile(path / "model.safetensors").names)


def test_an_artifact_holds_each_tensor_once_and_no_training(artifact: Path) -> None:
    names = _names(artifact)
    assert any(name.startswith("quantizer.") for name in names)
    assert not any(name.startswith("codec.quantizer.") for name in names)
    assert not any(name.endswith(("embed_avg", "cluster_size", ".pe")) for name in names)
    assert not any(name.endswith(("weight_g", "weight_v")) for name in names)
    assert "prior_encoder.encoder.enc_emb_tokens.weight" not in names  # held twice
    assert "prior_encoder.enc_emb_tokens.weight" in names


def test_an_artifact_is_restored_without_the_codecs_file(
    tiny_ns2: NaturalSpeech2Model, artifact: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    inference = NaturalSpeech2Model.open(str(artifact), "small").inference
    assert inference.codec.quantizer is inference.model.quantizer
    assert inference.codec.bandwidth == 12.0
    original = tiny_ns2.inference
    assert inference.symbols == original.symbols
    for name, tensor in original.model.named_buffers():
        if name.endswith((".embed", ".pe", "pitch_bins")):
            assert inference.model.get_buffer(name).equal(tensor)


def test_a_codec_of_its_own_tables_keeps_them(
    make_ns2_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """A checkpoint whose tables were trained further has others than the published codec."""
    import torch

    folder = make_ns2_dir(tmp_path / "tiny")
    weights = torch.load(folder / CODEC, weights_only=True)
    weights["quantizer.vq.layers.0._codebook.embed"] += 0.1
    torch.save(weights, folder / CODEC)
    model = NaturalSpeech2Model.open(f"{folder}?inference_step=2", "other")
    inference = model.inference
    assert inference.codec.quantizer is not inference.model.quantizer
    saved = compress(model, "int8-weight-only").save(tmp_path / "small")
    assert any(name.startswith("codec.quantizer.") for name in _names(saved))
    again = NaturalSpeech2Model.open(str(saved), "small", read_manifest(saved))
    table = again.root().get_buffer("codec.quantizer.vq.layers.0._codebook.embed")
    assert table.equal(weights["quantizer.vq.layers.0._codebook.embed"])
    assert np.isfinite(again.synthesize(_GOOD_DAY, seed=0).samples).all()


def _objective(model: NaturalSpeech2Model, module: str) -> Objective:
    (found,) = [x for x in model.objectives() if x.module == module]
    return found


def _record(model: NaturalSpeech2Model, objective: Objective) -> list[Call]:
    recorder, root = CallRecorder(objective, most=8), model.root()
    with recorder.recording(root):
        model.with_root(root, None).synthesize("good day", seed=0)
    return recorder.calls


def _repeat(root: Any, objective: Objective, call: Call) -> Any:
    """Return a module's output for copies of recorded inputs."""
    method = repeatable(root.get_submodule(objective.module), objective)
    return method(*copy.deepcopy(call.arguments), **copy.deepcopy(call.keywords))


def test_each_step_of_a_trajectory_is_a_call(tiny_ns2: NaturalSpeech2Model) -> None:
    objective = _objective(tiny_ns2, "diffusion.diff_estimator")
    calls = _record(tiny_ns2, objective)
    assert [round(float(call.arguments[3]), 3) for call in calls] == [0.875, 0.625, 0.375, 0.125]
    assert all(call.output.shape[1] == 128 for call in calls)


def test_gradients_reach_the_weights(tiny_ns2: NaturalSpeech2Model) -> None:
    from tts_compress.torch.layers.module_surgery import copy_sharing_tensors, normalize

    objective = _objective(tiny_ns2, "diffusion.diff_estimator")
    call = _record(tiny_ns2, objective)[0]
    student = copy.deepcopy(normalize(copy_sharing_tensors(tiny_ns2.root())))
    for parameter in student.parameters():
        parameter.requires_grad_()
    (answer,) = compared_outputs(objective, _repeat(student, objective, call))
    (answer - 2 * call.output).square().mean().backward()
    estimator = student.get_submodule(objective.module)
    missing = [
        name for name, p in estimator.named_parameters() if p.grad is None or not p.grad.any()
    ]
    # Keys' biases move all scores alike.
    assert [name for name in missing if not name.endswith("k_proj.bias")] == []


@pytest.mark.slow
def test_a_report_states_what_is_not_upstreams(
    tmp_path: Path, tiny_ns2_dir: Path, amphion: Path
) -> None:
    """The model is its own candidate; workers find the clone by the option's setting."""
    pytest.importorskip("pocketsphinx")
    spec, out = f"naturalspeech2:{tiny_ns2_dir}?inference_step=2", tmp_path / "report"
    arguments = [spec, spec, "--suite", str(write_suite(tmp_path, ["Hello there."]))]
    checkout = ["--checkout", str(amphion)]
    assert main(["evaluate", *arguments, "--output", str(out), *checkout]) == 0
    found = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert found["health"]["candidate"] == found["health"]["reference"]
    for side in ("reference", "candidate"):
        settings = found[side]["settings"]
        assert settings["solver"].startswith("2 steps")
        assert len(settings["upstream commit"]) == 40
    # The audio that the script would play differs.
    note = "dropout is off here, where the script leaves it on"
    for name in ("report.md", "report.html"):
        page = (out / name).read_text(encoding="utf-8")
        assert note in page
        assert page.index(note) < page.rindex("Provenance")  # above the details
