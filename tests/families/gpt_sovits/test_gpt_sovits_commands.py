"""The command line on a GPT-SoVITS model, by the specs that users type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tts_compress import load
from tts_compress.cli import main
from tts_compress.inspection.components import _torch_seconds
from tts_compress.models.gpt_sovits import GPT_SOVITS
from tts_compress.models.gpt_sovits.model import GptSovitsModel

if TYPE_CHECKING:
    from tts_compress.models.gpt_sovits.loading import Official


def test_a_model_is_compressed_and_speaks(
    tiny_config: Path,
    official: Official,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv(GPT_SOVITS.variable)
    checkout = ["--checkout", str(official.checkout.root)]
    spec = f"gpt-sovits:{tiny_config}?text_lang=en&prompt_lang=en"
    out = tmp_path / "int8"
    assert main(["quantize", spec, "--scheme", "int8", "--output", str(out), *checkout]) == 0
    # The option's setting lasts as long as the process, for workers that it starts.
    monkeypatch.setenv(GPT_SOVITS.variable, str(official.checkout.root))
    wav = tmp_path / "spoken.wav"
    assert main(["synthesize", str(out), "please call", "--output", str(wav)]) == 0
    assert wav.stat().st_size > 32000

    capsys.readouterr()
    assert main(["inspect", str(out), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {part["name"] for part in shown["components"]} >= {"t2s", "vits.dec", "bert", "hubert"}
    small = load(out)
    assert isinstance(small, GptSovitsModel)
    assert small.manifest is not None
    assert small.manifest.scheme == "int8"


def test_the_time_of_speaking_is_the_components(tiny: GptSovitsModel) -> None:
    """The language model's, too, whose methods upstream calls by names of its own."""
    seconds = _torch_seconds(tiny, "please call again at ten", 0)
    assert {"t2s", "vits.enc_p", "vits.flow", "vits.dec", "vits.ref_enc"} <= seconds.keys()
    assert all(spent > 0 for spent in seconds.values())
    assert seconds["t2s"] > seconds["vits.ref_enc"]  # fifty steps to one


def test_two_files_name_a_model(tiny_config: Path, official: Official, tmp_path: Path) -> None:
    """Text and speech encoder are then the clone's, which lacks them here: an error reports it."""
    t2s, sovits = tiny_config.with_name("t2s.ckpt"), tiny_config.with_name("sovits.pth")
    for location in (f"{t2s},{sovits}", f"{sovits},{t2s}"):
        model = load(f"gpt-sovits:{location}")
        assert isinstance(model, GptSovitsModel)
        assert model.version == "v2"
        assert model.prompt.audio == tiny_config.with_name("reference.wav")
    if (official.checkout.root / "GPT_SoVITS/pretrained_models/chinese-hubert-base").exists():
        pytest.skip("the clone has the pretrained encoders")
    spec = f"gpt-sovits:{t2s},{sovits}"
    assert main(["quantize", spec, "--output", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
