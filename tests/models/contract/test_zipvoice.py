"""Voices that are told a recording's features and what it says, in ZipVoice's layout."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.texts import write_set
from tts_compress.audio import Audio, read_wav, resample, write_wav
from tts_compress.cli import main
from tts_compress.compression import compress
from tts_compress.config import data_file
from tts_compress.errors import ModelError
from tts_compress.models import load
from tts_compress.models.base import Prompt, Speaking

torch = pytest.importorskip("torch")

from tests.models.contract import zipvoice  # noqa: E402  it needs torch
from tts_compress.models.stand_ins import MelSpectrogram  # noqa: E402

TEXT, TRANSCRIPT = "ids: 5 9 12 30 7 8", "ids: 4 6 20 11"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the voice with a quiet recording and its transcript; do not change."""
    folder = tmp_path_factory.mktemp("zipvoice") / "voice"
    zipvoice.write_voice(folder)
    times = np.arange(12_000) / 16_000
    sound = np.sum([np.sin(2 * np.pi * f * times) for f in (180, 450, 2100)], 0) * 0.02
    sound += 1e-3 * np.random.default_rng(0).standard_normal(len(times))
    samples = sound.astype(np.float32)
    write_wav(folder / "reference.wav", Audio(samples=samples, sample_rate=16_000))
    (folder / "reference.txt").write_text(TRANSCRIPT + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def voice(files: Path) -> Any:
    """Return the voice, found by the contract that is shipped."""
    return load(files / "text_encoder.onnx")


@pytest.fixture
def copied(files: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies the voice and states a contract beside it."""

    def copy(contract: str = "") -> Path:
        shutil.copytree(files, tmp_path / "voice")
        if contract:
            text = f'version = 1\nbase = "zipvoice"\n{contract}'
            (tmp_path / "voice" / "contract.toml").write_text(text, encoding="utf-8")
        return tmp_path / "voice" / "text_encoder.onnx"

    return copy


def _heard(files: Path) -> tuple[Any, float]:
    """Return the features that the authors' program makes of the recording, and its gain."""
    wav = read_wav(files / "reference.wav")
    samples = torch.from_numpy(resample(wav.samples, wav.sample_rate, zipvoice.RATE))
    level = samples.square().mean().sqrt()
    assert level < 0.1
    mel = MelSpectrogram(
        zipvoice.RATE, n_fft=zipvoice.N_FFT, hop_length=zipvoice.HOP, n_mels=100, power=1
    )
    features = mel(samples * 0.1 / level)[..., : round(len(samples) / zipvoice.HOP)]
    return features.reshape(1, 100, -1).clamp(min=1e-7).log().transpose(1, 2) * 0.1, level / 0.1


def test_it_speaks_as_the_authors_loop_does(voice: Any, files: Path) -> None:
    assert len(data_file("calib/contracts", "zipvoice").read_text("utf-8").splitlines()) <= 45
    features, gain = _heard(files)
    ids, transcript = ([int(n) for n in text.split()[1:]] for text in (TEXT, TRANSCRIPT))
    silence = torch.zeros(1, 1000, 100)
    expected = zipvoice.spoken(features, transcript, ids, silence) * float(gain)
    samples = voice.synthesize(TEXT, seed=None).samples
    assert np.std(samples) > 0.01
    assert np.allclose(samples, expected, atol=1e-4)
    rounds = list(voice.calibration_calls([TEXT], seed=5, part="fm_decoder"))
    noise = torch.from_numpy(rounds[0]["x"])
    assert [float(call["t"]) for call in rounds][::15] == pytest.approx([0, 15 / 17])
    expected = zipvoice.spoken(features, transcript, ids, noise) * float(gain)
    assert np.allclose(voice.synthesize(TEXT, seed=5).samples, expected, atol=1e-4)


def test_noise_is_equal_at_equal_times(voice: Any) -> None:
    """Times are along the second axis here, and bands along the last."""
    first, second = (
        next(voice.calibration_calls([text], seed=1, part="fm_decoder"))["x"]
        for text in (TEXT, f"{TEXT} 9 9")
    )
    assert second.shape[1] > first.shape[1]
    assert np.array_equal(first, second[:, : first.shape[1]])


@pytest.mark.slow
def test_integers_speak_like_it_and_take_the_recording_along(files: Path, tmp_path: Path) -> None:
    few = write_set(tmp_path / "few.toml", [TEXT, "ids: 9 30 31 7"])
    graph, out = str(files / "text_encoder.onnx"), str(tmp_path / "small")
    command = ["quantize", graph, "--scheme", "int8", "--output", out]
    assert main([*command, "--calibration", str(few)]) == 0
    small: Any = load(out)
    assert {path.name for path in Path(out).iterdir()} >= {
        *("text_encoder.onnx", "fm_decoder.onnx", "vocos_24khz.onnx", "tokens.txt"),
        *("reference.wav", "reference.txt", "contract.toml"),
    }
    assert small.speaking.prompt.text == TRANSCRIPT
    before, after = (v.synthesize(TEXT, seed=3).samples for v in (load(graph), small))
    assert before.shape == after.shape
    error = np.sqrt(np.mean(np.square(before - after)) / np.mean(np.square(before)))
    assert 0 < error < 0.2
    wav = str(tmp_path / "a.wav")
    assert main(["synthesize", out, TEXT, "--output", wav]) == 0
    assert main(["inspect", out]) == 0


def test_another_recording_comes_with_its_own_transcript(
    voice: Any, files: Path, tmp_path: Path
) -> None:
    other = Audio(samples=read_wav(files / "reference.wav").samples[::-1], sample_rate=16_000)
    write_wav(tmp_path / "other.wav", other)
    prompt = Prompt(audio=tmp_path / "other.wav", text="ids: 9 9 9")
    changed = voice.speaking_as(Speaking(prompt=prompt))
    first, second = (v.synthesize(TEXT, seed=0).samples for v in (voice, changed))
    assert len(second) > len(first)  # fewer tokens in as many frames
    saved: Any = load(compress(changed, "int8-weight-only").save(tmp_path / "saved"))
    assert saved.speaking.prompt.text == "ids: 9 9 9"
    retold = voice.speaking_as(Speaking(prompt=Prompt(text="ids: 9 9 9")))
    assert len(retold.synthesize(TEXT, seed=0).samples) == len(second)
    with pytest.raises(ModelError, match=r"put it in reference.txt .*--reference-text"):
        voice.speaking_as(Speaking(prompt=Prompt(audio=prompt.audio))).synthesize(TEXT)


def test_a_quiet_recording_is_brought_up_and_the_sound_down(voice: Any, tmp_path: Path) -> None:
    wav = read_wav(voice.speaking.prompt.audio)
    heard, said = [], []
    for factor in (1, 2, 5, 10):
        path = tmp_path / f"{factor}.wav"
        write_wav(path, Audio(samples=wav.samples * factor, sample_rate=wav.sample_rate))
        changed = voice.speaking_as(Speaking(prompt=Prompt(audio=path, text=TRANSCRIPT)))
        call = next(changed.calibration_calls([TEXT], seed=1, part="fm_decoder"))
        heard.append(call["speech_condition"])
        said.append(changed.synthesize(TEXT, seed=1).samples)
    assert np.allclose(heard[0], heard[1], atol=0.02)
    assert np.std(said[1]) / np.std(said[0]) == pytest.approx(2, abs=0.02)
    frames = slice(2, wav.samples.size * 24_000 // wav.sample_rate // zipvoice.HOP - 2)
    louder = (heard[3] - heard[2])[:, frames]
    assert louder.mean() == pytest.approx(0.1 * np.log(2), abs=0.005)


@pytest.mark.parametrize("changed", [True, False])
def test_a_contract_changes_a_graph_of_the_one_it_is_based_on(
    copied: Callable[..., Path], changed: bool
) -> None:
    """As for the distilled voice: fewer rounds, more guidance, and everything else as it was."""
    change = '[[then]]\ngraph = "*decoder.onnx"\nrepeat = 8\ninput.guidance_scale.value = 3.0\n'
    other: Any = load(copied(change if changed else ""))
    rounds = list(other.calibration_calls([TEXT], seed=5, part="fm_decoder"))
    assert len(rounds) == (8 if changed else 16)
    assert float(rounds[0]["guidance_scale"]) == (3.0 if changed else 1.0)
    assert [*other.parts] == ["", "fm_decoder", "vocos_24khz"]


@pytest.mark.parametrize(
    ("contract", "files_left", "message"),
    [
        ("", ("reference.txt",), "there is none; put reference.wav beside"),
        ("", ("reference.wav",), r"put it in reference.txt beside its graphs, or give it"),
        ("recording.speech_condition.rate = 24000\nsize.frames.axis = 7", None, "an axis which"),
        ("recording.speech_condition.mel.bands = 99", None, "'speech_condition float32 "),
        ("recording.speech_condition.longest_s = 0.1", None, "give a recording of 0 to 0.1 s"),
        ("recording.speech_condition.mel.n_fft = 7", None, "n_fft: Input should be"),
        ('input.prompt_tokens.role = "output"', None, "input.prompt_tokens"),
        ("input.speed.value = 100.0", None, "no input 'speech_condition float32.* can be made"),
        ('[[then]]\ngraph = "vocos*.onnx"\ninput.mels.order = [0, 3, 1]', None, "can be made of"),
        ('[[then]]\ngraph = "vocos*.onnx"\ninput.mels.skip = "prompts"', None, "no size is named"),
    ],
)
def test_what_is_wrong_gets_one_line(
    copied: Callable[..., Path],
    refused: Callable[..., str],
    tmp_path: Path,
    contract: str,
    files_left: tuple[str, ...] | None,
    message: str,
) -> None:
    path = copied(contract)
    for name in ("reference.wav", "reference.txt"):
        if files_left is not None and name not in files_left:
            path.with_name(name).unlink()
    assert re.search(message, refused("synthesize", path, TEXT, "--output", tmp_path / "a.wav"))


def test_a_silent_recording_is_refused(copied: Callable[..., Path]) -> None:
    path = copied()
    silence = Audio(samples=np.zeros(9_000, np.float32), sample_rate=16_000)
    write_wav(path.with_name("reference.wav"), silence)
    with pytest.raises(ModelError, match="is silent; give a recording"):
        load(path).synthesize(TEXT)


def test_espeak_reads_text_and_transcript_alike(copied: Callable[..., Path]) -> None:
    pytest.importorskip("piper")
    path = copied()
    path.with_name("reference.txt").write_text("Hello, world", encoding="utf-8")
    voice: Any = load(path)
    [call] = voice.calibration_calls(["Hello, world."], seed=0)
    assert np.array_equal(call["tokens"], call["prompt_tokens"])
    assert call["tokens"].shape[1] > 8


def test_streamed_sound_has_the_recordings_level(voice: Any) -> None:
    parts = [chunk.samples for chunk in voice.stream(f"{TEXT} 9 9 20 21 9 9", seed=2)]
    assert len(parts) > 1
    whole = voice.synthesize(f"{TEXT} 9 9 20 21 9 9", seed=2).samples
    assert np.allclose(np.concatenate(parts), whole, atol=1e-5)


def test_features_that_need_too_much_memory_are_refused(copied: Callable[..., Path]) -> None:
    stated = "recording.speech_condition.mel = { bands = 100, n_fft = 16384, hop_length = 16 }"
    with pytest.raises(ModelError, match="features need too much memory"):
        load(copied(stated)).synthesize(TEXT)


def test_sherpa_onnx_speaks_an_artifact(voice: Any, files: Path, tmp_path: Path) -> None:
    """It draws noise of its own, so lengths and levels are compared; a frame more is its own."""
    client = pytest.importorskip("sherpa_onnx")
    piper = pytest.importorskip("piper")
    folder = compress(voice, "int8-dynamic").save(tmp_path / "small")
    words = {"go": "ɡ ə ʊ", "hello": "h ə l ə ʊ"}
    lines = "".join(f"{word} {symbols}\n" for word, symbols in words.items())
    (folder / "lexicon.txt").write_text(lines, encoding="utf-8")
    stated = client.OfflineTtsZipvoiceModelConfig(
        tokens=str(folder / "tokens.txt"),
        encoder=str(folder / "text_encoder.onnx"),
        decoder=str(folder / "fm_decoder.onnx"),
        vocoder=str(folder / "vocos_24khz.onnx"),
        data_dir=str(Path(piper.__file__).parent / "espeak-ng-data"),
        lexicon=str(folder / "lexicon.txt"),
    )
    model = client.OfflineTtsModelConfig(zipvoice=stated, num_threads=1)
    speech = client.OfflineTts(client.OfflineTtsConfig(model=model))
    wav = read_wav(files / "reference.wav")
    wav = Audio(samples=wav.samples * 8, sample_rate=wav.sample_rate)
    write_wav(tmp_path / "loud.wav", wav)
    theirs = speech.generate("go", "hello", wav.samples.tolist(), wav.sample_rate, 1.0, 16)
    text, transcript = (
        "ids: " + " ".join(str(zipvoice.SYMBOLS.index(symbol)) for symbol in words[word].split())
        for word in ("go", "hello")
    )
    small: Any = load(folder)
    told = small.speaking_as(Speaking(prompt=Prompt(audio=tmp_path / "loud.wav", text=transcript)))
    ours = told.synthesize(text, seed=0)
    assert theirs.sample_rate == ours.sample_rate
    assert abs(len(theirs.samples) - len(ours.samples)) <= 2 * zipvoice.HOP
    assert 0.5 < np.std(theirs.samples) / np.std(ours.samples) < 2
