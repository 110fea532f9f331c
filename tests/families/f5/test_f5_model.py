"""A tiny F5-TTS model speaks by upstream's own code, reproducibly."""

import copy
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.audio import Audio
from tts_compress.compression import compress
from tts_compress.errors import ModelError, TextError
from tts_compress.models.base import Prompt, TorchModel
from tts_compress.models.f5.model import F5Model
from tts_compress.models.f5.network import F5Options, official
from tts_compress.models.pretrained import quiet

_TEXT = "hello there, this is a text."
_LONG = "This is one sentence. " * 30


def _same(one: Audio, other: Audio) -> bool:
    return np.array_equal(one.samples, other.samples)


def test_it_is_what_the_protocols_say(tiny_f5: F5Model) -> None:
    assert isinstance(tiny_f5, TorchModel)
    assert tiny_f5.family == "f5-tts"
    assert tiny_f5.manifest is None
    assert tiny_f5.options == F5Options(nfe_step=4)
    shown = tiny_f5.describe()
    assert shown["transformer"] == "DiT, 2 layers of width 64"
    assert shown["solver"] == "4 steps, guidance 2"
    assert shown["recording"] == "reference.wav"


def test_a_model_in_half_precision_gets_the_same_noise(tiny_f5: F5Model) -> None:
    """Through torch's own seeds the two differ as much as two different texts."""
    root = copy.deepcopy(tiny_f5.root())
    root.get_submodule("transformer").bfloat16()
    half = tiny_f5.with_root(root, None)
    exact = tiny_f5.synthesize(_TEXT, seed=3).samples
    error = half.synthesize(_TEXT, seed=3).samples - exact
    another = tiny_f5.synthesize(_TEXT, seed=4).samples - exact
    assert 0 < np.square(error).mean() < 0.02 * np.square(another).mean()


@pytest.mark.parametrize("text", [_TEXT, _LONG, "hey."], ids=["one part", "parts", "short"])
def test_without_noise_it_says_what_upstream_says(
    tiny_f5: F5Model, tiny_f5_dir: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Parts are split, spoken and joined as `F5TTS.infer` does it, which uses threads."""
    from tts_compress.models.torch_noise import paired_noise

    class Inline:
        def __enter__(self) -> "Inline":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
            done: Future[Any] = Future()
            done.set_result(work(*arguments))
            return done

    monkeypatch.setattr(official("f5_tts.infer.utils_infer"), "ThreadPoolExecutor", Inline)
    reference = tiny_f5_dir / "reference.wav"
    said = (tiny_f5_dir / "reference.txt").read_text().strip()
    with quiet(), paired_noise(None):
        wanted, rate, _ = tiny_f5.api.infer(
            str(reference), said, text, show_info=lambda _: None, progress=None, nfe_step=4
        )
    spoken = tiny_f5.synthesize(text, seed=None)
    assert (spoken.duration_s > 22) == (text == _LONG)
    assert spoken.sample_rate == rate
    assert np.array_equal(spoken.samples, wanted.astype(np.float32))


def test_a_long_text_is_reproducible_and_its_parts_have_their_own_noise(tiny_f5: F5Model) -> None:

    from tts_compress.models.f5.model import split_text

    model = tiny_f5.with_options(F5Options(nfe_step=1))
    text = "A text. " * 120
    parts = split_text(text, model._reference, model.options)
    assert len(parts) == 3
    assert parts[0] == parts[1]
    spoken = model.synthesize(text, seed=0)
    assert _same(spoken, model.synthesize(text, seed=0))
    alone = model.synthesize(parts[0], seed=0).samples
    fade = 3600  # 0.15 s
    first, second = spoken.samples[: len(alone)], spoken.samples[len(alone) - fade :][: len(alone)]
    inside = slice(fade, -fade)
    assert np.array_equal(first[inside], alone[inside])
    assert np.square(second[inside] - alone[inside]).mean() > 0.1 * np.square(alone).mean()


def test_the_loaded_networks_are_those_of_upstream(tiny_f5: F5Model, tiny_f5_dir: Path) -> None:
    import torch

    yaml = import_module("yaml")

    config = yaml.safe_load((tiny_f5_dir / "config.yaml").read_text())
    inference = official("f5_tts.infer.utils_infer")
    with quiet():
        wanted = inference.load_model(
            official("f5_tts.model").DiT,
            config["model"]["arch"],
            str(tiny_f5_dir / "model_1.safetensors"),
            vocab_file=str(tiny_f5_dir / "vocab.txt"),
            device="cpu",
        ).eval()
        vocoder = inference.load_vocoder(
            "vocos", is_local=True, local_path=str(tiny_f5_dir / "vocoder"), device="cpu"
        )
    generator = torch.Generator().manual_seed(0)
    given = {
        "x": torch.randn(1, 50, 100, generator=generator),
        "cond": torch.randn(1, 50, 100, generator=generator),
        "text": torch.randint(0, 90, (1, 20), generator=generator),
        "time": torch.tensor(0.3),
    }
    with torch.no_grad():
        assert tiny_f5.api.ema_model.transformer(**given).equal(wanted.transformer(**given))
    mel = torch.randn(1, 100, 50, generator=generator)
    assert tiny_f5.api.vocoder.decode(mel).equal(vocoder.decode(mel))
    assert tiny_f5.api.ema_model.vocab_char_map == wanted.vocab_char_map
    assert not any(module.training for module in tiny_f5.root().modules())


def test_upstream_speaks_with_the_api_and_in_the_runtime(
    tiny_f5: F5Model, tiny_f5_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wave, rate, _ = tiny_f5.api.infer(
        str(tiny_f5_dir / "reference.wav"), "one two.", _TEXT, nfe_step=2
    )
    assert rate == 24000
    assert np.isfinite(wave).all()
    capsys.readouterr()
    runtime = tiny_f5.open_runtime(threads=1)
    spoken, other = runtime.speak(_TEXT), runtime.speak(_TEXT)
    assert len(spoken.samples) == len(tiny_f5.synthesize(_TEXT, seed=0).samples)
    assert not _same(spoken, other)  # its own noise
    assert not capsys.readouterr().out
    with pytest.raises(TextError, match="nothing to speak"):
        runtime.speak(" ")


def test_the_live_modules_can_be_copied_after_speaking(tiny_f5: F5Model) -> None:
    """Upstream keeps the text in a `threading.local`, which no copy can be made of."""
    root = tiny_f5.root()
    tiny_f5.synthesize(_TEXT, seed=0)
    memo: dict[int, Any] = {id(tensor): tensor for tensor in root.parameters()}
    copied = copy.deepcopy(root, memo)
    assert next(copied.parameters()) is next(root.parameters())


@pytest.mark.parametrize(
    ("backbone", "arch"),
    [
        ("UNetT", {"dim": 64, "depth": 2, "heads": 2, "dim_head": 32, "ff_mult": 2}),
        ("MMDiT", {"dim": 64, "depth": 2, "heads": 2, "dim_head": 32, "ff_mult": 2}),
        ("DiT", {"long_skip_connection": True, "qk_norm": "rms_norm", "conv_layers": 0}),
    ],
)
def test_other_backbones_speak_and_are_restored(
    make_f5_dir: Callable[..., Path], tmp_path: Path, backbone: str, arch: dict[str, Any]
) -> None:
    folder = make_f5_dir(tmp_path / "model", backbone, **arch)
    model = F5Model.open(f"{folder}?nfe_step=2", "other")
    spoken = model.synthesize(_TEXT, seed=0)
    saved = F5Model.open(str(model.save(tmp_path / "saved")), "saved")
    assert _same(saved.synthesize(_TEXT, seed=0), spoken)
    assert sum(c.parameters for c in saved.components().values()) == sum(
        c.parameters for c in model.components().values()
    )


def test_layers_of_e2_tts_are_integers(make_f5_dir: Callable[..., Path], tmp_path: Path) -> None:
    """Its backbone names them in another way, and all of them kept FP32."""
    arch = {"dim": 64, "depth": 2, "heads": 2, "dim_head": 32, "ff_mult": 2}
    folder = make_f5_dir(tmp_path / "model", "UNetT", **arch)
    small = compress(F5Model.open(str(folder), "e2"), "int8-dynamic")
    assert small.manifest is not None
    layers = [x for x in small.manifest.layers if x.module.startswith("transformer.layers.")]
    assert {(x.weights, x.activations) for x in layers} == {("int8", "dynamic")}


def test_components_hold_every_matrix(tiny_f5: F5Model) -> None:
    found = tiny_f5.components()
    assert list(found) == [
        "transformer.text_embed",
        "transformer.time_embed",
        "transformer.input_embed",
        "transformer.transformer_blocks",
        "transformer.norm_out",
        "transformer.proj_out",
        "vocoder",
    ]
    # Per block: modulation 64→384, q, k, v and output 64×64, and twice 64×128.
    blocks = found["transformer.transformer_blocks"]
    assert blocks.parameters == 2 * (64 * 384 + 4 * 64 * 64 + 2 * 64 * 128)
    assert blocks.size_bytes == 4 * blocks.parameters
    assert blocks.operators == {"Linear": 14}
    # A matrix has two dimensions, the kernel of a convolution three; GRN's scales have one.
    every = [p.numel() for p in tiny_f5.root().parameters() if p.squeeze().dim() > 1]
    assert sum(component.parameters for component in found.values()) == sum(every)


def test_a_prompt_is_exchanged_in_parts(tiny_f5: F5Model, tmp_path: Path) -> None:
    import soundfile

    wave, rate = soundfile.read(tiny_f5.prompt.audio)
    louder = tmp_path / "louder.flac"
    soundfile.write(louder, 3 * wave[: rate * 3 // 2], rate)
    other = tiny_f5.with_prompt(Prompt(audio=louder))
    with pytest.raises(ModelError, match=r"what is said in '.*louder.flac' is not known"):
        other.synthesize(_TEXT, seed=0)
    other = other.with_prompt(Prompt(text="one two three"))
    spoken = other.synthesize(_TEXT, seed=0)
    before = tiny_f5.synthesize(_TEXT, seed=0)
    assert np.square(spoken.samples).mean() > 2 * np.square(before.samples).mean()
    assert other.api is tiny_f5.api  # weights are loaded once
    assert len(other.open_runtime(threads=1).speak(_TEXT).samples) == len(spoken.samples)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing to speak"),
        (" ?! ", "nothing to speak"),
        ("a\0b", "null characters"),
        ("a\ud800b", "surrogate"),
        ("Привет", "knows no letter of 'Привет'"),
        ("word " * 400, "end sentences with a full stop"),
    ],
)
def test_texts_that_cannot_be_spoken(tiny_f5: F5Model, text: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        tiny_f5.synthesize(text, seed=0)


def test_recordings_that_cannot_be_spoken_by(tiny_f5: F5Model, tmp_path: Path) -> None:
    import soundfile

    silence = tmp_path / "silence.wav"
    soundfile.write(silence, np.zeros(48_000), 24_000)
    model = tiny_f5.with_prompt(Prompt(audio=silence, text="nothing"))
    with pytest.raises(ModelError, match=r"holds 0\.. s of sound; give a recording of 0\.5 to 12"):
        model.synthesize(_TEXT, seed=0)
    odd = tmp_path / "odd.wav"
    soundfile.write(odd, np.zeros(48_000), 24_001)
    with pytest.raises(ModelError, match="24001 samples per second"):
        tiny_f5.with_prompt(Prompt(audio=odd, text="odd"))
    noise = tmp_path / "noise.wav"
    noise.write_bytes(b"no audio")
    for path in (noise, tmp_path / "missing.wav"):
        with pytest.raises(ModelError, match="cannot read audio from"):
            tiny_f5.with_prompt(Prompt(audio=path, text="none"))
    holes = tmp_path / "holes.wav"
    soundfile.write(holes, np.full(48_000, np.nan), 24_000, subtype="FLOAT")
    with pytest.raises(ModelError, match="not finite"):
        tiny_f5.with_prompt(Prompt(audio=holes, text="holes")).synthesize(_TEXT, seed=0)
