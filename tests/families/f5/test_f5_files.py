"""Missing, malformed or hostile content of a model's files is reported, and not run."""

import re
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.families.damage import remove, replace, write
from tts_compress.errors import ModelError, TTSCompressError
from tts_compress.models.f5.model import F5Model
from tts_compress.models.f5.network import F5Options


def _spoil_weights(folder: Path) -> None:
    import torch

    path = folder / "vocoder" / "pytorch_model.bin"
    weights = torch.load(path, weights_only=True)
    weights["head.out.weight"][0, 0] = float("nan")
    torch.save(weights, path)


def _write_pickle(folder: Path) -> None:
    """Write a checkpoint that would run code where it is read as torch once read them."""
    import torch

    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return (import_module("os").mkdir, (str(folder / "owned"),))

    (folder / "model_1.safetensors").unlink()
    torch.save({"ema_model_state_dict": Hostile()}, folder / "model.pt")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (remove("model_1.safetensors"), "holds no *.safetensors or *.pt; one checkpoint"),
        (write("model_2.pt", ""), "holds model_1.safetensors, model_2.pt; one checkpoint"),
        (remove("vocab.txt"), "holds no vocab.txt; an F5-TTS model is a checkpoint"),
        (remove("config.yaml"), "holds no config.yaml"),
        (remove("vocoder/config.yaml"), "vocoder' holds no config.yaml"),
        (remove("vocoder/pytorch_model.bin"), "holds no model.safetensors or pytorch_model.bin"),
        (write("config.yaml", "a: ["), "config.yaml': while parsing"),
        (write("config.yaml", "[1, 2]"), "config.yaml': file: Input should be a valid dictionary"),
        (write("config.yaml", "model: 3"), "model: Input should be a valid dictionary"),
        (
            replace("config.yaml", "backbone: DiT", "backbone: Trainer"),
            "backbone: Input should be 'DiT'",
        ),
        (replace("config.yaml", "n_fft: 1024", "n_fft: 2048"), "n_fft: Input should be 1024"),
        (replace("config.yaml", "vocos", "bigvgan"), "mel_spec_type: Input should be 'vocos'"),
        (replace("config.yaml", "model:", "inference: {steps: 3}\nmodel:"), "states 'steps'"),
        (
            replace("vocoder/config.yaml", "vocos.models.VocosBackbone", "os.mkdir"),
            "backbone.class_path: Input should be 'vocos.models.VocosBackbone'",
        ),
        (write("reference.txt", b"\xff"), "cannot read"),
        (replace("config.yaml", "dim: 64", "dim: 48"), "cannot be loaded with the files beside"),
        (replace("config.yaml", "dim: 64", "width: 64"), "cannot be loaded with the files beside"),
        (write("vocab.txt", " \na\n"), "model_1.safetensors' cannot be loaded"),
        (write("model_1.safetensors", "nothing"), "model_1.safetensors' cannot be loaded"),
        (_spoil_weights, "weight 'head.out.weight' has values that are not finite"),
        (_write_pickle, "model.pt' cannot be loaded"),
    ],
)
def test_a_spoiled_model_is_an_error(
    tiny_f5_dir: Path, tmp_path: Path, spoil: Callable[[Path], Any], message: str
) -> None:
    folder = tmp_path / "spoiled"
    shutil.copytree(tiny_f5_dir, folder)
    spoil(folder)
    with pytest.raises(ModelError, match=re.escape(message)):
        F5Model.open(str(folder), "spoiled").root()
    assert not (folder / "owned").exists()


def test_a_vocoder_may_lie_in_safetensors_and_a_checkpoint_in_pt(
    tiny_f5_dir: Path, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "other"
    shutil.copytree(tiny_f5_dir, folder)
    weights = load_file(folder / "model_1.safetensors")
    torch.save({"ema_model_state_dict": weights}, folder / "model.pt")
    (folder / "model_1.safetensors").unlink()
    vocoder = folder / "vocoder" / "pytorch_model.bin"
    save_file(torch.load(vocoder, weights_only=True), vocoder.with_name("model.safetensors"))
    vocoder.unlink()
    found = dict(F5Model.open(str(folder), "other").root().named_parameters())
    wanted = dict(F5Model.open(str(tiny_f5_dir), "tiny").root().named_parameters())
    assert found.keys() == wanted.keys()
    assert all(found[name].equal(wanted[name]) for name in wanted)


@pytest.mark.parametrize("location", ["some/where", "/nowhere", __file__])
def test_a_place_without_a_model_is_an_error(location: str) -> None:
    with pytest.raises(ModelError, match="is no directory; an F5-TTS model is a directory or"):
        F5Model.open(location, location)


@pytest.mark.usefixtures("f5_packages")
def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"no F5-TTS model 'F6'; give .* F5TTS_v1_Base"):
        F5Model.open("F6", "f5-tts:F6")


@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [
        ("F5TTS_v1_Base", "hf://SWivid/F5-TTS/F5TTS_v1_Base/model_1250000.safetensors"),
        ("E2TTS_Base", "hf://SWivid/E2-TTS/E2TTS_Base/model_1200000.safetensors"),
    ],
)
def test_a_name_is_downloaded_with_the_packages_own_example(
    tiny_f5_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str, checkpoint: str
) -> None:
    asked: list[str] = []

    def download(url: str) -> Path:
        asked.append(url)
        return tiny_f5_dir / "vocoder" / url.rpartition("/")[2]

    monkeypatch.setattr(import_module("cached_path"), "cached_path", download)
    model = F5Model.open(f"{name}?speed=1.2", f"f5-tts:{name}?speed=1.2")
    assert asked == [
        checkpoint,
        "hf://charactr/vocos-mel-24khz/config.yaml",
        "hf://charactr/vocos-mel-24khz/pytorch_model.bin",
    ]
    assert model.options == F5Options(speed=1.2)
    assert model.prompt.audio is not None
    assert model.prompt.audio.is_file()
    assert model.prompt.text == "Some call me nature, others call me mother nature."
    assert str(model.describe()["transformer"]).endswith("layers of width 1024")


@pytest.mark.usefixtures("f5_packages")
def test_a_failed_download_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str) -> Path:
        raise ConnectionError(f"no way to {url}")

    monkeypatch.setattr(import_module("cached_path"), "cached_path", fail)
    with pytest.raises(ModelError, match=r"cannot download 'F5TTS_v1_Base' .*: no way to hf://"):
        F5Model.open("F5TTS_v1_Base", "f5-tts:F5TTS_v1_Base")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("nfe_step=0", "nfe_step is 0; give an integer from 1 to 1000"),
        ("nfe_step=2.5", "nfe_step is 2.5; give an integer"),
        ("cfg_strength=nan", "cfg_strength is nan; give a number from 0 to 100"),
        ("speed=fast", "speed is 'fast'; give a number from 0.1 to 10"),
        ("steps=3", "states 'steps'; there are cfg_strength, nfe_step"),
        ("nfe_step", "write them as 'nfe_step=16&speed=1.2'"),
    ],
)
def test_a_wrong_option_is_an_error(tiny_f5_dir: Path, query: str, message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        F5Model.open(f"{tiny_f5_dir}?{query}", "tiny")


def test_options_that_are_not_the_defaults_are_stated() -> None:
    given = {"nfe_step": 16, "sway_sampling_coef": -0.5}
    changed = F5Options().changed(given, "test")
    assert changed == F5Options(nfe_step=16, sway_sampling_coef=-0.5)
    assert changed.stated() == given
    with pytest.raises(TTSCompressError, match="nfe_step is True"):
        F5Options(nfe_step=True)
