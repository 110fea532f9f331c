"""A checkpoint of Amphion's speaks through Amphion's own inference, reproducibly."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.errors import ModelError, TextError
from tts_compress.models.base import UNLIKE_UPSTREAM, Prompt
from tts_compress.models.naturalspeech2 import AMPHION
from tts_compress.models.naturalspeech2.model import NaturalSpeech2Model
from tts_compress.models.naturalspeech2.network import CODEC, NS2Options

_TEXT = "hello there, good day."


def _process() -> tuple[Any, ...]:
    return Path.cwd(), list(sys.path), list(sys.argv), sorted(Path.cwd().iterdir())


def test_it_leaves_the_process_as_it_was(
    tiny_ns2: NaturalSpeech2Model, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _process()
    samples = tiny_ns2.synthesize(_TEXT, seed=0).samples
    assert _process() == before
    assert capsys.readouterr().out == ""
    other = tiny_ns2.synthesize(_TEXT, seed=1).samples
    assert len(other) == len(samples)  # durations are no matter of noise


def test_it_says_what_upstreams_own_script_writes(
    tiny_ns2: NaturalSpeech2Model, tiny_ns2_dir: Path, tmp_path: Path, amphion: Path
) -> None:
    """The script's file, of which only the 16 bits differ; its dropout is switched off."""
    import argparse

    import soundfile
    import torch

    from tts_compress.models.checkout import Checkout
    from tts_compress.models.torch_noise import paired_noise

    checkout = Checkout(upstream=AMPHION, root=amphion)
    module = checkout.load("models.tts.naturalspeech2.ns2_inference")
    network = checkout.load("models.tts.naturalspeech2.ns2")
    config = checkout.load("utils.util").load_config
    real = module.EncodecModel
    weights = torch.load(tiny_ns2_dir / CODEC, weights_only=True)

    class Downloaded:
        @staticmethod
        def encodec_model_24khz() -> Any:
            codec = real.encodec_model_24khz(pretrained=False)
            codec.load_state_dict(weights)
            return codec

    args = argparse.Namespace(
        device="cpu",
        checkpoint_path=str(tiny_ns2_dir),
        text=_TEXT,
        ref_audio=str(tiny_ns2_dir / "reference.wav"),
        inference_step=4,
        output_dir=str(tmp_path),
    )
    with pytest.MonkeyPatch.context() as patch, checkout.running(), torch.no_grad():
        patch.delenv("WORK_DIR", raising=False)
        patch.setattr(network, "EncodecModel", Downloaded)
        patch.setattr(module, "EncodecModel", Downloaded)
        script = module.NS2Inference(args, config(str(tiny_ns2_dir / "args.json")))
        script.model.eval()
        with paired_noise(3):
            script.inference()
    (written,) = tmp_path.glob("*.wav")
    expected, rate = soundfile.read(written, dtype="float32")
    spoken = tiny_ns2.synthesize(_TEXT, seed=3)
    assert rate == spoken.sample_rate
    np.testing.assert_allclose(spoken.samples, expected, atol=1.01 / 32768)


def test_dropout_is_off(tiny_ns2: NaturalSpeech2Model) -> None:
    assert not any(module.training for module in tiny_ns2.root().modules())
    assert "dropout is off" in tiny_ns2.describe()[UNLIKE_UPSTREAM]
    tiny_ns2.root().train()
    assert not any(module.training for module in tiny_ns2.root().modules())


def test_steps_are_an_option(tiny_ns2: NaturalSpeech2Model) -> None:
    two = tiny_ns2.with_options(NS2Options(inference_step=2))
    assert two.describe()["solver"] == "2 steps, euler"
    calls: list[int] = []
    estimator = two.root().get_submodule("diffusion.diff_estimator")
    hook = estimator.register_forward_pre_hook(lambda *_: calls.append(1))
    two.synthesize("good day", seed=0)
    hook.remove()
    assert len(calls) == 2


def test_another_recording_is_another_voice(tiny_ns2: NaturalSpeech2Model, tmp_path: Path) -> None:
    import soundfile

    assert tiny_ns2.prompt.audio is not None
    wave, _ = soundfile.read(tiny_ns2.prompt.audio)
    path = tmp_path / "other.aiff"
    soundfile.write(path, np.stack([wave, wave])[:, ::-1].T[:16_000], 16_000)
    other = tiny_ns2.with_prompt(Prompt(audio=path))
    spoken = other.synthesize("good day", seed=0)
    assert np.isfinite(spoken.samples).all()
    assert not np.array_equal(spoken.samples, tiny_ns2.synthesize("good day", seed=0).samples)
    saved = NaturalSpeech2Model.open(str(other.save(tmp_path / "saved")), "saved")
    assert np.array_equal(saved.synthesize("good day", seed=0).samples, spoken.samples)


@pytest.mark.parametrize("text", ["", " ", "…", "\0a", "\ud800a"])
def test_what_cannot_be_spoken_is_refused(tiny_ns2: NaturalSpeech2Model, text: str) -> None:
    with pytest.raises(TextError):
        tiny_ns2.synthesize(text, seed=0)


def test_too_long_a_text_is_refused_before_it_fills_the_memory(
    tiny_ns2: NaturalSpeech2Model,
) -> None:
    with pytest.raises(TextError, match="phones and at most 1000"):
        tiny_ns2.synthesize("hello there " * 300, seed=0)


def test_phones_that_the_model_does_not_know_are_refused(tiny_ns2: NaturalSpeech2Model) -> None:
    with pytest.raises(TextError, match="begin it with a word"):
        tiny_ns2.synthesize(", hello", seed=0)


@pytest.mark.parametrize(("bias", "message"), [(9.0, "more than 60 s"), (-9.0, "no time at all")])
def test_durations_of_a_damaged_model_are_refused(
    tiny_ns2: NaturalSpeech2Model, bias: float, message: str
) -> None:
    import torch

    predictor = tiny_ns2.root().get_submodule("prior_encoder.duration_predictor.linear")
    assert isinstance(predictor, torch.nn.Linear)
    kept = predictor.bias.detach().clone()
    with torch.no_grad():
        predictor.bias.fill_(bias)
        try:
            with pytest.raises(ModelError, match=message):
                tiny_ns2.synthesize("good day", seed=0)
        finally:
            predictor.bias.copy_(kept)


def test_the_lexicon_of_the_clone_is_asked_for(
    make_ns2_dir: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_ns2_dir(tmp_path / "tiny")
    (folder / "words.txt").unlink()
    model = NaturalSpeech2Model.open(f"{folder}?inference_step=1", "x")
    with pytest.raises(ModelError, match=r"words\.txt.*check the clone at '.*' out again"):
        model.synthesize("good day", seed=0)


def test_a_checkpoint_of_other_settings_is_refused(
    make_ns2_dir: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_ns2_dir(tmp_path / "tiny")
    text = (folder / "args.json").read_text()
    (folder / "args.json").write_text(text.replace('"query_token_num": 8', '"query_token_num": 9'))
    with pytest.raises(ModelError, match=r"size mismatch for query_emb\.weight"):
        NaturalSpeech2Model.open(str(folder), "x").root()
    (folder / "args.json").write_text(text.replace('"head_num": 2', '"head_num": 7'))
    with pytest.raises(ModelError, match="cannot be built"):
        NaturalSpeech2Model.open(str(folder), "x").root()


def test_the_other_kind_of_diffusion_speaks_too(
    make_ns2_dir: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_ns2_dir(tmp_path / "flow", diffusion_type="flow")
    model = NaturalSpeech2Model.open(f"{folder}?inference_step=2", "x")
    spoken = model.synthesize("good day", seed=0).samples
    assert np.isfinite(spoken).all()
    assert np.abs(spoken).max() > 0.01


def test_components_hold_all_the_weights_of_operators(tiny_ns2: NaturalSpeech2Model) -> None:
    components = tiny_ns2.components()
    assert list(components)[:2] == ["prompt_lin", "prompt_encoder"]
    estimator = components["diffusion.diff_estimator"]
    # Each layer has five; every third has attention, of four, and two of the modulation.
    assert estimator.operators == {"Conv1d": 3 * 6 + 3, "Linear": 6 + 2 + 2 * (4 + 2)}
    weights = [
        tensor.numel()
        for name, tensor in tiny_ns2.root().named_parameters()
        if name.startswith("diffusion.") and tensor.dim() > 1
    ]
    assert estimator.parameters == sum(weights)
    assert "quantizer" not in components  # tables are no operators


def test_only_one_system_of_its_kind_is_loaded_into_a_process(
    tiny_ns2: NaturalSpeech2Model, tmp_path: Path
) -> None:
    from tts_compress.models.checkout import Checkout

    tiny_ns2.root()
    other = Checkout(upstream=AMPHION, root=tmp_path)
    with pytest.raises(ModelError, match="one process runs one such system"):
        other.load("models.tts.naturalspeech2.ns2")
