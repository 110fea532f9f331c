"""Models in upstream's own formats, read by upstream's own loaders."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.compression import compress
from tts_compress.errors import ArtifactError, ModelError
from tts_compress.models.base import Prompt
from tts_compress.models.gpt_sovits.checkpoint import read_sovits, read_t2s
from tts_compress.models.gpt_sovits.loading import Official
from tts_compress.models.gpt_sovits.model import GptSovitsModel

TEXT = "please call again at ten"


def _fp16(model: GptSovitsModel) -> GptSovitsModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the processor has no such arithmetic
        small = compress(model, "fp16")
    assert isinstance(small, GptSovitsModel)
    return small


def test_what_is_not_compressed_is_written_as_upstream_writes_it(
    tiny: GptSovitsModel, tmp_path: Path
) -> None:
    """The tiny model's files hold FP16 already, so nothing at all is lost."""
    saved = tiny.save(tmp_path / "same")
    again = GptSovitsModel.open(f"{saved / 'tts_infer.yaml'}?text_lang=en&prompt_lang=en", "again")
    np.testing.assert_allclose(
        again.synthesize(TEXT, seed=0).samples, tiny.synthesize(TEXT, seed=0).samples, atol=1e-3
    )
    with pytest.raises(ArtifactError, match="--force"):
        tiny.save(saved)
    tiny.save(saved, force=True)


def test_upstreams_loaders_read_fp16(
    tiny: GptSovitsModel, tmp_path: Path, official: Official, monkeypatch: pytest.MonkeyPatch
) -> None:
    inference = official.inference
    monkeypatch.setattr(inference.TTS_Config, "save_configs", lambda *_: None)  # into the clone
    small = _fp16(tiny)
    saved = small.save_official(tmp_path / "fp16")
    source = tiny.files().settings
    custom = {
        "t2s_weights_path": str(saved / "t2s.ckpt"),
        "vits_weights_path": str(saved / "sovits.pth"),
        "bert_base_path": str(next(p.parent for p in source if p.parent.name == "bert")),
        "cnhuhbert_base_path": str(next(p.parent for p in source if p.parent.name == "hubert")),
        "device": "cpu",
        "version": "v2",
    }
    inputs: dict[str, Any] = {
        "text": TEXT,
        "text_lang": "en",
        "prompt_lang": "en",
        "prompt_text": tiny.prompt.text,
        "ref_audio_path": str(saved / "reference.wav"),
        "seed": 3,
    }
    with official.running():
        theirs = inference.TTS({"custom": custom})
        theirs.set_ref_audio(inputs["ref_audio_path"])
        # Another path of the recording would be read within `run`, and draw random numbers there.
        prompt = Prompt(audio=saved / "reference.wav", text=tiny.prompt.text)
        ours = tiny.with_prompt(prompt).tts
        (_, wave), (_, expected) = (next(tts.run(inputs)) for tts in (theirs, ours))
    assert np.abs(wave.astype(int) - expected).max() <= 3  # of 32768
    assert np.abs(wave).max() > 300


def test_an_artifact_gives_the_same_files(tiny: GptSovitsModel, tmp_path: Path) -> None:
    """Upstream's programs then read the published encoders."""
    import torch

    small = _fp16(tiny)
    before = small.save_official(tmp_path / "before")
    artifact = GptSovitsModel.open(str(small.save(tmp_path / "artifact")), "artifact")
    after = artifact.save_official(tmp_path / "after")
    for read, name in ((read_t2s, "t2s.ckpt"), (read_sovits, "sovits.pth")):
        wanted, found = read(before / name), read(after / name)
        assert found.config == wanted.config
        assert found.tensors.keys() == wanted.tensors.keys()
        assert all(torch.equal(found.tensors[key], wanted.tensors[key]) for key in wanted.tensors)
    assert "bert_base_path: null" in (after / "tts_infer.yaml").read_text("utf-8")


def test_what_upstreams_formats_do_not_have_is_refused(
    tiny: GptSovitsModel, tmp_path: Path
) -> None:
    small = compress(tiny, "int8")
    assert isinstance(small, GptSovitsModel)
    with pytest.raises(ModelError, match="int8 weights; upstream's formats have FP16 alone"):
        small.save_official(tmp_path / "int8")
    assert not (tmp_path / "int8").exists()
