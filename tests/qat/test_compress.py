"""From the shell and from Python: a voice, a bare graph and a module are trained and saved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.told import Told
from tts_compress import compress, load
from tts_compress.artifact import read_manifest
from tts_compress.cli import main
from tts_compress.compression import compress_trained
from tts_compress.errors import MissingExtraError, QuantizationError, RecipeError, SchemeError
from tts_compress.models.base import GraphModel
from tts_compress.qat.options import TrainingOptions, TrainingRun, require_packages
from tts_compress.torch.layers.base import CompressedLayer

_QUICK = ["--steps", "4", "--batch-size", "2", "--threads", "1", "--learning-rate", "1e-5"]


@pytest.fixture(scope="module")
def recipe(quick_recipe: Callable[[str], Path]) -> str:
    """Return the path of a recipe for three texts and narrow layers."""
    path = quick_recipe("int8-qat")
    text = path.read_text(encoding="utf-8").replace("channels = 32", "channels = 1")
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def artifact(tiny_path: Path, recipe: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the artifact that the command makes of the tiny voice."""
    output = tmp_path_factory.mktemp("trained") / "voice"
    arguments = ["qat", str(tiny_path), "--recipe", recipe, "--output", str(output)]
    assert main([*arguments, *_QUICK]) == 0
    return output


@pytest.mark.slow
def test_command_makes_a_voice_that_speaks(artifact: Path) -> None:
    voice: Any = load(artifact)
    samples = voice.open_runtime(threads=1).speak("A quick test.").samples
    assert np.isfinite(samples).all()
    assert samples.std() > 0.01
    training = read_manifest(artifact).training
    assert training is not None
    assert sum(training.after.values()) <= sum(training.before.values())
    folder = artifact.with_name("voice.training")
    assert (folder / "log.jsonl").is_file()
    assert (folder / "checkpoint.safetensors").is_file()


@pytest.mark.slow
def test_finished_training_is_only_deployed_again(
    artifact: Path, tiny_path: Path, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (artifact / "tiny.onnx").read_bytes()
    arguments = ["qat", str(tiny_path), "--recipe", recipe, "--output", str(artifact)]
    assert main([*arguments, *_QUICK, "--resume", "--force", "--json"]) == 0
    printed = capsys.readouterr()
    assert "resuming after 4 updates" in printed.err
    document = json.loads(printed.out)
    assert document["artifact"] == str(artifact)
    assert document["sound"]["texts"] == 4
    assert abs(document["sound"]["distortion"]) < 5.0
    assert (artifact / "tiny.onnx").read_bytes() == before


def test_command_refuses_what_it_cannot_go_on_from(
    tiny_path: Path, recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["qat", str(tiny_path), "--recipe", recipe, "--output"]
    assert main([*arguments, str(tmp_path / "other"), "--resume"]) == 2
    assert "holds no checkpoint to resume from; leave --resume out" in capsys.readouterr().err
    manifest = '{"format_version": 1, "files": {}}'
    (tmp_path / "manifest.json").write_text(manifest, encoding="utf-8")
    assert main([*arguments, str(tmp_path), *_QUICK]) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*arguments, str(tmp_path), *_QUICK, "--force", "--steps", "0"]) == 2
    assert "steps is 0; give 1 or more" in capsys.readouterr().err
    assert main([*arguments, str(tmp_path / "other"), "--device", "moon"]) == 2
    assert "no device 'moon'; accepted: " in (told := capsys.readouterr().err)
    assert "calibrate" not in told, "refused before the work"


_DIRECTIONS = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x))


@pytest.fixture
def net() -> tuple[nn.Module, list[torch.Tensor]]:
    """Return a module and batches of its inputs, which vary together, so that it can be trained."""
    torch.manual_seed(0)
    return _Net().eval(), [torch.randn(4, 6) @ _DIRECTIONS for _ in range(10)]


@pytest.mark.parametrize("scheme", ["int8-qat", "int4-weight-only"])
def test_modules_learn_and_become_integers(net: Any, scheme: str, tmp_path: Path) -> None:
    module, batches = net
    options = TrainingOptions(steps=60, learning_rate=1e-3, held_out_every=20, threads=1)
    small: Any = compress_trained(
        module,
        scheme,
        calibration=batches,
        run=TrainingRun(options=options, folder=tmp_path),
    )
    assert isinstance(small.get_submodule("layer"), CompressedLayer)
    if scheme == "int4-weight-only":
        plain = compress(module, scheme)
        inputs = torch.randn(64, 6) @ _DIRECTIONS
        with torch.inference_mode():
            exact = module(inputs)
            errors = [(other(inputs) - exact).square().mean() for other in (small, plain)]
        assert errors[0] < 0.9 * errors[1]


def test_compress_trains_by_the_schemes_name(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, batches = net
    told = Told()
    monkeypatch.setattr(
        "tts_compress.compression.TrainingOptions",
        lambda seed: TrainingOptions(seed=seed, steps=3),
    )
    small = compress(module, "int8-qat", calibration=batches, progress=told)
    assert isinstance(small.get_submodule("layer"), CompressedLayer)
    assert told.steps[-1] == ("train", 3, 3)


def test_a_module_in_training_is_left_as_it_was(net: Any, tmp_path: Path) -> None:
    """Under spectral norm every look at a weight is a step of its own."""
    module = nn.Sequential(parametrizations.spectral_norm(nn.Linear(64, 64)), net[0]).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    run = TrainingRun(options=TrainingOptions(steps=2), folder=tmp_path)
    compress_trained(module, calibration=net[1], run=run)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_the_loss_of_a_module_is_chosen(net: Any, tmp_path: Path, tiny: GraphModel) -> None:
    """The function that took one was hidden, and the documented one had none."""
    module, batches = net
    run = TrainingRun(options=TrainingOptions(steps=2, loss="waveform"), folder=tmp_path)
    compress_trained(module, calibration=batches, run=run)
    log = (tmp_path / "log.jsonl").read_text(encoding="utf-8")
    assert "output/waveform" in log
    with pytest.raises(QuantizationError, match="loss 'waveform' is for a torch module; family"):
        compress_trained(tiny, run=run)


def test_modules_need_inputs_to_learn_from(net: Any) -> None:
    with pytest.raises(RecipeError, match="give batches as calibration"):
        compress_trained(net[0])
    with pytest.raises(RecipeError, match="1 batches to train on"):
        compress_trained(net[0], calibration=net[1][:1])


def test_unknown_schemes_are_refused(net: Any, tiny: GraphModel) -> None:
    with pytest.raises(SchemeError, match="int9"):
        compress_trained(net[0], "int9", calibration=net[1])
    with pytest.raises(SchemeError):
        compress_trained(tiny, "fp8")


def test_missing_packages_are_named_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tts_compress.qat.options.find_spec",
        lambda name: None if name == "accelerate" else object(),
    )
    with pytest.raises(MissingExtraError, match=r"'accelerate'.*tts-compress\[qat\]"):
        require_packages()
