"""Pocket-TTS and Phonon by transformers' own classes: language models of a codec's latents."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.tiny import write_voice
from tts_compress.errors import ModelError, TextError
from tts_compress.models import load
from tts_compress.models.base import LatentModel, Prompt, Speaking
from tts_compress.models.torch_noise import noise_by_step, paired_noise

_TEXT = "call at ten"
_CLASSES = {
    "pocket": "PocketTTSForConditionalGeneration",
    "phonon": "GradiumPhononTTSForConditionalGeneration",
}


@pytest.mark.parametrize("kind", _CLASSES)
def test_it_speaks_as_the_official_objects(
    kind: str, request: pytest.FixtureRequest, transformers: Any
) -> None:
    """Where the codec takes the recording at its own rate, or latents are given."""
    import torch

    folder, voice = (request.getfixturevalue(name) for name in (f"{kind}_dir", kind))
    official = getattr(transformers, _CLASSES[kind]).from_pretrained(folder).eval()
    codec = transformers.PocketTTSAudioTokenizerModel.from_pretrained(folder / "vocoder").eval()
    features = transformers.AutoFeatureExtractor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    processor = transformers.PocketTTSProcessor(
        features, tokenizer, audio_tokenizer=codec, chat_template=tokenizer.chat_template
    )
    speech = np.random.default_rng(1).normal(size=(4, 8 if kind == "pocket" else 24))
    content = [{"type": "audio"}, {"type": "text", "text": _TEXT}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}])
    latents = torch.from_numpy(speech.astype(np.float32))
    inputs = processor(text=[prompt], audio_prompt_latents=[latents], return_tensors="pt")
    with paired_noise(7), noise_by_step(official):
        said = processor.decode(official.generate(**inputs)[0])
    voice = _with_speech(voice, folder, speech, request.getfixturevalue("tmp_path"))
    spoken = voice.synthesize(_TEXT, seed=7)
    np.testing.assert_array_equal(spoken.samples, said.numpy())
    assert len(spoken.samples) == 16 * int(np.ceil((11 / 3 + 2) * 3))
    assert spoken.sample_rate == 2400


def _with_speech(voice: Any, folder: Path, speech: Any, tmp_path: Path) -> Any:
    """Return the voice with other latents of its speaker beside it, and no recording."""
    copied = shutil.copytree(folder, tmp_path / "voice")
    (copied / "reference.wav").unlink(missing_ok=True)
    np.save(copied / "speaker.npy", speech.astype(np.float32))
    return load(f"{voice.family}:{copied}")


def test_a_recording_chooses_the_voice_and_is_saved(pocket: Any, tmp_path: Path) -> None:
    write_voice(tmp_path / "high.wav", seconds=0.6, pitch_hz=400)
    other = pocket.speaking_as(Speaking(prompt=Prompt(audio=tmp_path / "high.wav")))
    said = other.synthesize(_TEXT, seed=0).samples
    assert not np.array_equal(said, pocket.synthesize(_TEXT, seed=0).samples)
    saved = load(f"transformers:{other.save(tmp_path / 'saved')}")
    np.testing.assert_array_equal(saved.synthesize(_TEXT, seed=0).samples, said)
    write_voice(tmp_path / "short.wav", seconds=0.2)
    with pytest.raises(ModelError, match=r"is 0\.2 s long; give a recording of 0\.5 to 60 s"):
        pocket.speaking_as(Speaking(prompt=Prompt(audio=tmp_path / "short.wav")))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("pocket", r"put reference.wav or speaker.npy with latents .* \[frames, 8\]"),
        ("phonon", r"put speaker.npy with latents of its speech, shape \[frames, 24\]"),
    ],
)
def test_without_a_voice_it_does_not_speak(
    kind: str, message: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    voice = shutil.copytree(request.getfixturevalue(f"{kind}_dir"), tmp_path / "voice")
    (voice / "reference.wav").unlink(missing_ok=True)
    (voice / "speaker.npy").unlink(missing_ok=True)
    with pytest.raises(ModelError, match=message):
        load(f"transformers:{voice}").synthesize(_TEXT, seed=0)
    np.save(voice / "speaker.npy", np.zeros((2, 5), np.float32))
    with pytest.raises(ModelError, match=r"rows of \d+ numbers, not shape \(2, 5\)"):
        load(f"transformers:{voice}").synthesize(_TEXT, seed=0)


def test_a_codec_without_an_encoder_takes_no_recording(
    pocket_dir: Path, tmp_path: Path, transformers: Any
) -> None:
    voice = shutil.copytree(pocket_dir, tmp_path / "voice")
    codec = transformers.PocketTTSAudioTokenizerModel.from_pretrained(
        voice / "vocoder", encoder_config=None
    )
    codec.save_pretrained(voice / "vocoder")
    changed = load(f"transformers:{voice}")
    with pytest.raises(ModelError, match="no encoder for recordings; put latents into speaker"):
        changed.synthesize(_TEXT, seed=0)


def test_settings_of_the_processor_are_needed_and_name_the_codec(
    pocket_dir: Path, tmp_path: Path
) -> None:
    voice = shutil.copytree(pocket_dir, tmp_path / "voice")
    shutil.move(voice / "vocoder", tmp_path / "codec")
    path = voice / "processor_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["audio_tokenizer"]["audio_tokenizer_name_or_path"] = str(tmp_path / "codec")
    path.write_text(json.dumps(settings), encoding="utf-8")
    assert load(f"transformers:{voice}").synthesize(_TEXT, seed=0).samples.size
    path.unlink()
    with pytest.raises(ModelError, match=r"holds no processor_config\.json"):
        load(f"transformers:{voice},{tmp_path / 'codec'}").synthesize(_TEXT, seed=0)


def test_a_long_text_is_spoken_in_parts_and_bounded(pocket: Any) -> None:
    parts = ["a" * 40 + ".", "b" * 30 + "."]
    rows = pocket.generate_latents(" ".join(parts), seed=0)
    assert np.isnan(rows).all(-1).sum() == 2
    assert np.isnan(rows[0]).all()
    with pytest.raises(TextError, match="give a text of 1 to"):
        pocket.synthesize("a" * 400, seed=0)


@pytest.mark.parametrize("kind", _CLASSES)
def test_what_it_reads_again_is_what_it_spoke(kind: str, request: pytest.FixtureRequest) -> None:
    """Without noise, the answer to a latent is the next; and another's latents are refused."""
    voice: Any = request.getfixturevalue(kind)
    assert isinstance(voice, LatentModel)
    text = "a" * 40 + ". " + "b" * 20 + "."
    rows = voice.generate_latents(text, seed=None)
    reading = voice.read_latents(text, rows)
    begins: Any = np.isnan(rows).any(-1)
    following = ~np.append(begins[1:], True)
    np.testing.assert_allclose(
        reading.latents[:-1][following[:-1]], rows[1:][following[:-1]], atol=1e-4
    )
    assert (reading.stop < reading.threshold).all()
    for wrong in (rows[:, :-1], rows[1:], rows[~begins], np.vstack([rows, rows])):
        with pytest.raises(ModelError, match="are not ones of"):
            voice.read_latents(text, wrong)


def test_speech_ends_where_the_head_says(
    pocket: Any, pocket_dir: Path, edited: Callable[..., Path]
) -> None:
    """Its score is the one that is compared, with the threshold of the settings."""
    rows = pocket.generate_latents(_TEXT, seed=None)
    scores = pocket.read_latents(_TEXT, rows).stop
    threshold = float(np.sort(scores[6:])[-2:].mean())  # one is above it
    changed = edited(pocket_dir, "generation_config.json", eos_threshold=threshold)
    voice: Any = load(f"transformers:{changed}")
    ended = voice.generate_latents(_TEXT, seed=None)
    after = 4  # frames after the end of a short text
    assert len(ended) == min(6 + int(np.argmax(scores[6:])) + 1 + after, len(rows))
    assert voice.read_latents(_TEXT, ended).threshold == pytest.approx(threshold)


def test_weights_that_only_training_reads_may_be_missing(pocket_dir: Path, tmp_path: Path) -> None:
    """Released checkpoints lack them; the same model gives the same bytes."""
    from safetensors.torch import load_file, save_file

    voice = shutil.copytree(pocket_dir, tmp_path / "voice")
    path = voice / "model.safetensors"
    kept = {n: t for n, t in load_file(path).items() if not n.startswith("loss_weighting")}
    save_file(kept, path, metadata={"format": "pt"})
    saved = [load(f"transformers:{voice}").save(tmp_path / name) for name in ("one", "two")]
    assert len({(folder / "model.safetensors").read_bytes() for folder in saved}) == 1
