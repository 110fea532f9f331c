"""Pocket-TTS: the official object, loaded, spoken with and exchanged."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.conformance import compressed
from tests.families.tiny import write_voice
from tts_compress import load
from tts_compress.errors import ModelError
from tts_compress.evaluation.metrics.teacher_forcing import answer_columns, compare_answers
from tts_compress.models.base import LatentModel, Prompt, Speaking
from tts_compress.models.pocket.model import PocketModel, official
from tts_compress.models.pretrained import quiet
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

_TEXT = "at ten"
_LONGEST = 44
"""The package's bound: 7 tokens, three a second, 2 s more, 10 latents a second."""

_AFTER_END = 5
"""Latents that follow the end of a text of at most four words."""


@pytest.fixture(scope="module")
def small(tiny_pocket: PocketModel) -> Any:
    """Return the model in INT8, in memory."""
    return compressed(tiny_pocket, "int8")


@pytest.mark.slow
def test_without_a_seed_it_is_the_official_speech_without_noise(
    tiny_pocket: PocketModel, tiny_pocket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two parts, whose texts the official code divides."""
    monkeypatch.chdir(tiny_pocket_dir)
    text = "One two three four five. Six seven eight nine and ten."
    with quiet():
        model = official("models.tts_model").TTSModel.load_model(config="config.yaml", temp=0.0)
        model.max_decoder_frames_per_call = 1
        said = model.generate_audio(model.get_state_for_audio_prompt(Path("reference.wav")), text)
    latents = tiny_pocket.generate_latents(text, seed=None)
    assert np.isnan(latents).any(axis=1).sum() == 2
    np.testing.assert_array_equal(tiny_pocket.synthesize(text, seed=None).samples, said.numpy())


@pytest.mark.slow
def test_noise_reaches_the_thread_that_generates(tiny_pocket: PocketModel) -> None:
    """A seed gives two models the same noise, whatever the temperature: it only scales it."""
    paths = [
        tiny_pocket.with_options(replace(tiny_pocket.options, temperature=t)).generate_latents(
            _TEXT, seed=5
        )
        for t in (0.0, 1e-12, 1.0)
    ]
    steps = min(map(len, paths[:2]))
    np.testing.assert_allclose(paths[1][1:steps], paths[0][1:steps], atol=1e-3)
    assert np.abs(paths[2][1:9] - paths[0][1:9]).max() > 0.1


@pytest.mark.slow
def test_speech_ends_where_the_head_says(tiny_pocket: PocketModel) -> None:
    """Some frames after the first step above the threshold, and not before the sixth."""

    def path(threshold: float) -> Any:
        options = replace(tiny_pocket.options, eos_threshold=threshold)
        return tiny_pocket.with_options(options).generate_latents(_TEXT, seed=None)

    endless = path(100)
    assert len(endless) == _LONGEST
    scores = tiny_pocket.read_latents(_TEXT, endless).stop[6 : -1 - _AFTER_END]
    highest = int(np.argmax(scores))
    threshold = float(scores[:highest].max())
    assert len(path(threshold)) == 6 + highest + _AFTER_END + 1
    assert len(path(-100)) == 6 + _AFTER_END + 1


def test_answers_are_those_of_the_official_steps(tiny_pocket: PocketModel) -> None:
    """Latents that it reads without noise are its own, one step later."""
    assert isinstance(tiny_pocket, LatentModel)
    path = tiny_pocket.generate_latents(_TEXT, seed=None)
    reading = tiny_pocket.read_latents(_TEXT, path)
    np.testing.assert_array_equal(reading.latents[:-1], path[1:])
    assert reading.stop.shape == (len(path),)
    ended = int(np.argmax(reading.stop[6:] > reading.threshold)) + 6
    assert len(path) in {ended + _AFTER_END + 1, _LONGEST}
    for wrong in (path[1:], path[:, :4], np.concatenate([path, path])):
        with pytest.raises(ModelError, match="latents"):
            tiny_pocket.read_latents(_TEXT, wrong)


@pytest.mark.slow
def test_a_bias_of_the_end_is_told_from_compression(tiny_pocket: PocketModel, small: Any) -> None:
    import torch

    biased = copy_sharing_tensors(small.root())
    head: Any = biased.get_submodule("flow_lm.out_eos")
    with torch.no_grad():
        head.bias = torch.nn.Parameter(head.bias - 1)
    path = tiny_pocket.generate_latents(_TEXT, seed=0)
    before, rounded, planted = (
        answer_columns(model.read_latents(_TEXT, path))
        for model in (tiny_pocket, small, small.with_root(biased, small.manifest))
    )
    shift = compare_answers([(before, rounded)]).stop_shift
    assert abs(shift) < 0.2
    assert compare_answers([(before, planted)]).stop_shift == pytest.approx(shift - 1, abs=0.01)


@pytest.mark.slow
def test_a_stored_state_speaks_as_its_recording(tiny_pocket: PocketModel, tmp_path: Path) -> None:
    state = tmp_path / "mine.safetensors"
    official("models.model_state").export_model_state(tiny_pocket._speech().state, state)
    stored = tiny_pocket.speaking_as(Speaking(prompt=Prompt(audio=state)))
    said = tiny_pocket.synthesize(_TEXT, seed=0).samples
    np.testing.assert_array_equal(stored.synthesize(_TEXT, seed=0).samples, said)
    saved: Any = load(f"pocket-tts:{stored.save(tmp_path / 'saved')}")
    assert saved.prompt.audio.name == "voice.safetensors"
    np.testing.assert_array_equal(saved.synthesize(_TEXT, seed=0).samples, said)


@pytest.mark.slow
def test_another_recording_is_another_voice(tiny_pocket: PocketModel, tmp_path: Path) -> None:
    write_voice(tmp_path / "voice.flac", seconds=1.5, pitch_hz=190)
    other = tiny_pocket.with_prompt(Prompt(audio=tmp_path / "voice.flac"))
    said, mine = (m.generate_latents(_TEXT, seed=0) for m in (other, tiny_pocket))
    assert np.abs(said[1:9] - mine[1:9]).max() > 0.01
    saved = other.save(tmp_path / "saved")
    again: Any = load(f"pocket-tts:{saved}")
    assert (again.prompt.audio.name, again.prompt.audio.read_bytes()[:4]) == (
        "reference.wav",
        b"RIFF",
    )


def test_integers_decode_latent_by_latent(tiny_pocket: PocketModel, small: Any) -> None:
    """Loud latents beside quiet ones in one call would lift the floor of pauses."""
    import torch

    plain: Any = tiny_pocket.root()
    assert plain.max_decoder_frames_per_call == 0
    root = small.root()
    assert root.max_decoder_frames_per_call == 1
    states = official("modules.stateful_module")
    drawn = torch.randn(1, 12, 8, generator=torch.Generator().manual_seed(1))
    latents = drawn * torch.tensor([3.0, 0.01]).repeat_interleave(6)[:, None]

    def noise_db(at_once: int) -> float:
        heard = []
        for model in (plain, root):
            state = states.init_states(model.mimi, 1, sequence_length=200)
            parts = []
            with torch.no_grad():
                for part in torch.split(latents, at_once, 1):
                    parts.append(model.mimi.decode_from_latent(part, state))
                    states.increment_steps(model.mimi, state, increment=10 * part.shape[1])
            heard.append(torch.cat(parts, -1)[..., 8 * 400 :])
        return float(10 * (heard[1] - heard[0]).square().mean().log10())

    assert noise_db(1) < noise_db(12) - 6


def test_names_of_releases_and_of_the_hub_are_fetched(
    tiny_pocket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[str] = []

    def fetch(name: str, **_: Any) -> str:
        asked.append(name)
        return str(tiny_pocket_dir)

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    named = PocketModel.open("owner/name", "it")
    assert named.prompt.audio == tiny_pocket_dir / "reference.wav"
    assert asked == ["owner/name"]

    def download(name: str) -> Path:
        asked.append(name)
        if "without-voice-cloning" not in name:
            raise OSError("nobody agreed to the terms")
        return tiny_pocket_dir / "model.safetensors"

    monkeypatch.setattr(official("utils.utils"), "download_if_necessary", download)
    release = PocketModel.open("english,marius", "it")
    assert release.describe()["voice"] == "marius"
    assert PocketModel.open("italian", "it").describe()["voice"] == "giovanni"
    assert release.files().weights == (tiny_pocket_dir / "model.safetensors",)
    assert [name.split("/")[3] for name in asked[1:3]] == [
        "pocket-tts",
        "pocket-tts-without-voice-cloning",
    ]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("english-2099", "no Pocket-TTS model 'english-2099'; give a folder, or one of dutch"),
        ("{dir},alba", "names the voice 'alba'"),
        ("{dir}/model.yaml", "there is no"),
        ("{dir}?temperature=9", "temperature is 9"),
    ],
)
def test_what_is_no_model_is_said(tiny_pocket_dir: Path, spec: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        PocketModel.open(spec.format(dir=tiny_pocket_dir), spec)


def test_damaged_files_are_said(
    make_pocket_dir: Callable[..., Path],
    tiny_pocket: PocketModel,
    tiny_pocket_dir: Path,
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(tiny_pocket_dir, tmp_path / "damaged")
    (folder / "reference.wav").unlink()
    with pytest.raises(ModelError, match="no recording to speak by"):
        load(f"pocket-tts:{folder}").synthesize(_TEXT)
    (folder / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(f"pocket-tts:{folder}").components()
    (folder / "config.yaml").write_text("flow_lm: 3\n", encoding="utf-8")
    with pytest.raises(ModelError, match="is no configuration of Pocket-TTS"):
        load(f"pocket-tts:{folder}")
    wide = make_pocket_dir("wide", insert_bos_before_voice=False)
    state = tmp_path / "other.safetensors"
    other: Any = load(f"pocket-tts:{wide}")
    states = other._speech().state
    for held in states.values():
        held["cache"] = held["cache"][..., :8].contiguous()
    official("models.model_state").export_model_state(states, state)
    with pytest.raises(ModelError, match="make it from a recording with this model"):
        tiny_pocket.with_prompt(Prompt(audio=state)).synthesize(_TEXT)


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["pointwise", "drifting"])
def test_smaller_releases_have_other_heads(make_pocket_dir: Callable[..., Path], flow: str) -> None:
    """Flow heads without time, a projection before the heads, keys shared among queries."""
    folder = make_pocket_dir(flow, flow=flow, z_dim=32)
    model: Any = load(f"pocket-tts:{folder}")
    one = compressed(model, "int8")
    kept = {layer.module: layer.weights for layer in one.manifest.layers}
    assert (kept["flow_lm.z_proj"], kept["flow_lm.out_eos"]) == ("float32", "float32")
    path = model.generate_latents(_TEXT, seed=0)
    before, after = (answer_columns(each.read_latents(_TEXT, path)) for each in (model, one))
    assert compare_answers([(before, after)]).latent_distance < 0.05
