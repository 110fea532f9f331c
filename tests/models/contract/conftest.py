"""Tiny seeded graphs with the inputs of real systems, and the files beside them."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.graphs import Values, make_model, make_node

CHANNELS, STYLE, HOP = 32, 256, 64


class GraphBuilder:
    """Collects operators and seeded weights."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Any] = {}
        self._random = np.random.default_rng(7)

    def weight(self, name: str, *shape: int) -> str:
        """Add a weight of variance one over its inputs."""
        scale = np.float32(1 / np.sqrt(np.prod(shape[1:])))
        self.weights[name] = self._random.standard_normal(shape, np.float32) * scale
        return name

    def constant(self, name: str, values: Any, dtype: Any = np.int64) -> str:
        """Add a constant."""
        self.weights[name] = np.array(values, dtype)
        return name

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add an operator, named by scope as torch names them."""
        name = f"/{output.replace('.', '/')}/{operator}"
        self.nodes.append(make_node(operator, " ".join(inputs), output, name, **attributes))
        return output

    def model(self, inputs: Values, outputs: Values, **metadata: str) -> onnx.ModelProto:
        """Return it all, with properties of the file."""
        model = make_model(self.nodes, inputs, outputs, self.weights, opset=17)
        helper.set_model_props(model, metadata)
        onnx.checker.check_model(model)
        return model


def build_voice(
    inputs: Values,
    roles: dict[str, str],
    output: str,
    *,
    metadata: dict[str, str] | None = None,
    mel: bool = False,
    hop: int = HOP,
) -> onnx.ModelProto:
    """Return a graph that speaks: an embedding, two convolutions and an upsampling one.

    Args:
        inputs: Types and shapes by name, in order.
        roles: Names of the inputs that are tokens, style, speed, noise, tones or speaker.
        output: Name of the audio.
        metadata: Properties of the file.
        mel: True to stop before the upsampling.
        hop: Samples of a token.
    """
    g = GraphBuilder()
    g.weight("encoder.emb.weight", 200, CHANNELS)
    g.add("Reshape", [roles["tokens"], g.constant("encoder.shape", [1, -1])], "encoder.tokens")
    g.add("Gather", ["encoder.emb.weight", "encoder.tokens"], "encoder.emb")
    hidden = g.add("Transpose", ["encoder.emb"], "encoder.transposed", perm=[0, 2, 1])
    for role in ("tones", "speaker"):
        if role in roles:
            g.weight(f"{role}.emb.weight", 16, CHANNELS)
            g.add("Gather", [f"{role}.emb.weight", roles[role]], f"{role}.emb")
            shape = g.constant(f"{role}.axis", [2])
            if role == "tones":
                g.add("Transpose", [f"{role}.emb"], f"{role}.out", perm=[0, 2, 1])
            else:
                g.add("Unsqueeze", [f"{role}.emb", shape], f"{role}.out")
            hidden = g.add("Add", [hidden, f"{role}.out"], f"{role}.added")
    if "style" in roles:
        g.weight("style.proj.weight", STYLE, CHANNELS)
        g.add("MatMul", [roles["style"], "style.proj.weight"], "style.proj")
        g.add("Unsqueeze", ["style.proj", g.constant("style.axis", [2])], "style.out")
        hidden = g.add("Add", [hidden, "style.out"], "style.added")
    if "noise" in roles:
        g.add("RandomNormalLike", [hidden], "noise.drawn")
        g.add("Mul", ["noise.drawn", roles["noise"]], "noise.scaled")
        hidden = g.add("Add", [hidden, "noise.scaled"], "noise.added")
    if "speed" in roles:
        g.add("Cast", [roles["speed"]], "speed.real", to=TensorProto.FLOAT)
        hidden = g.add("Div", [hidden, "speed.real"], "speed.divided")
    for layer in ("decoder.conv1", "decoder.conv2"):
        g.weight(f"{layer}.weight", CHANNELS, CHANNELS, 3)
        g.add("Conv", [hidden, f"{layer}.weight"], f"{layer}.out", pads=[1, 1])
        hidden = g.add("LeakyRelu", [f"{layer}.out"], f"{layer}.act", alpha=0.1)
    if mel:
        g.add("Identity", [hidden], output)
    else:
        add_upsampling(g, hidden, output, hop)
    result = [1, CHANNELS, "T"] if mel else ["samples"]
    return g.model(inputs, {output: result}, **(metadata or {}))


def add_upsampling(g: GraphBuilder, hidden: str, output: str, hop: int = HOP) -> None:
    """Add the operators that make audio of channels."""
    g.weight("decoder.up.weight", CHANNELS, 1, hop)
    g.add("ConvTranspose", [hidden, "decoder.up.weight"], "decoder.up", strides=[hop])
    g.add("Tanh", ["decoder.up"], "decoder.audio")
    g.add("Reshape", ["decoder.audio", g.constant("decoder.flat", [-1])], output)


def build_vocoder() -> onnx.ModelProto:
    """Return a graph that makes audio of a mel spectrogram."""
    g = GraphBuilder()
    g.weight("generator.pre.weight", CHANNELS, CHANNELS, 3)
    g.add("Conv", ["mel", "generator.pre.weight"], "generator.pre", pads=[1, 1])
    g.add("LeakyRelu", ["generator.pre"], "generator.act", alpha=0.1)
    add_upsampling(g, "generator.act", "audio")
    inputs, outputs = {"mel": ["N", CHANNELS, "L"]}, {"audio": ["samples"]}
    return g.model(inputs, outputs, model_type="hifigan")


def build_vocos(metadata: dict[str, str] | None = None, *, n_fft: int = HOP) -> onnx.ModelProto:
    """Return a graph that makes magnitudes, cosines and sines of a mel spectrogram."""
    g = GraphBuilder()
    bins = n_fft // 2 + 1
    g.weight("backbone.embed.weight", CHANNELS, CHANNELS, 7)
    g.add("Conv", ["mels", "backbone.embed.weight"], "backbone.embed", pads=[3, 3])
    g.add("LeakyRelu", ["backbone.embed"], "backbone.act", alpha=0.1)
    for name in ("magnitude", "phase"):
        g.weight(f"head.{name}.weight", bins, CHANNELS, 1)
        g.add("Conv", ["backbone.act", f"head.{name}.weight"], f"head.{name}")
    outputs = ["mag", "x", "y"]
    for operator, source, name in zip(
        ("Exp", "Cos", "Sin"), ("magnitude", "phase", "phase"), outputs, strict=True
    ):
        g.add(operator, [f"head.{source}"], name)
    stated = {"n_fft": str(n_fft), "hop_length": str(n_fft // 4), "win_length": str(n_fft)}
    stated |= {"model_type": "vocos"} | (metadata or {})
    results: Values = {output: ["N", bins, "L"] for output in outputs}
    return g.model({"mels": ["N", CHANNELS, "L"]}, results, **stated)


def write_styles(path: Path, *names: str, shape: tuple[int, ...] = (510, 1, STYLE)) -> None:
    """Write a style file as kokoro-onnx publishes it: an `.npz` under any name."""
    random = np.random.default_rng(3)
    arrays: dict[str, Any] = {name: random.standard_normal(shape, np.float32) for name in names}
    with path.open("wb") as file:
        np.savez(file, **arrays)


_TOKENS = (TensorProto.INT64, ["N", "L"])
_LENGTHS = (TensorProto.INT64, ["N"])
_SCALES = {name: [1] for name in ("noise_scale", "length_scale", "noise_scale_w")}
_SCALED = {"noise": "noise_scale", "speed": "length_scale"}
"""Inputs of exports of VITS, and the roles of two of these inputs."""


def _write(folder: Path, name: str, model: onnx.ModelProto, *symbols: str) -> Path:
    """Write a voice into a new folder, with its table of symbols where it has one."""
    folder.mkdir()
    onnx.save(model, folder / name)
    if symbols:
        _write_symbols(folder, symbols)
    return folder / name


def _write_symbols(folder: Path, symbols: Sequence[str], first: int = 0) -> None:
    lines = [f"{symbol} {number}\n" for number, symbol in enumerate(symbols, first)]
    (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")


@pytest.fixture
def make_kokoro(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a voice with Kokoro's inputs and its style file."""

    def make(
        *, speed: int = TensorProto.FLOAT, tokens: str = "tokens", hop: int = HOP, **_: Any
    ) -> Path:
        inputs: Values = {tokens: (TensorProto.INT64, [1, "L"]), "style": [1, STYLE]}
        roles = {"tokens": tokens, "style": "style", "speed": "speed"}
        model = build_voice({**inputs, "speed": (speed, [1])}, roles, "audio", hop=hop)
        path = _write(tmp_path / "kokoro", "kokoro.onnx", model)
        write_styles(path.with_name("voices-v1.0.bin"), "af_heart", "am_adam")
        return path

    return make


@pytest.fixture
def make_vits(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a voice as icefall exports it, speaking characters."""

    def make(*, speakers: int = 1, **metadata: str) -> Path:
        inputs: dict[str, Any] = {"x": _TOKENS, "x_length": _LENGTHS, **_SCALES}
        roles = {"tokens": "x", **_SCALED}
        if speakers > 1:
            inputs["sid"], roles["speaker"] = _LENGTHS, "sid"
        stated = {
            "sample_rate": "16000",
            "n_speakers": str(speakers),
            "language": "English",
            "comment": "icefall",
            "frontend": "characters",
            "add_blank": "1",
            "blank_id": "0",
            "bos_id": "30",
            "eos_id": "31",
            "use_eos_bos": "1",
        }
        model = build_voice(inputs, roles, "audio", metadata=stated | metadata)
        path = _write(tmp_path / "vits", "vits.onnx", model)
        _write_symbols(path.parent, " abcdefghijklmnopqrstuvwxyz.,'", first=1)
        return path

    return make


@pytest.fixture
def make_kitten(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a voice with KittenTTS' inputs, and styles of some rows."""

    def make(rows: int = 1) -> Path:
        inputs = {"input_ids": (TensorProto.INT64, [1, "L"]), "style": [1, STYLE], "speed": [1]}
        roles = {"tokens": "input_ids", "style": "style", "speed": "speed"}
        path = _write(tmp_path / "kitten", "kitten.onnx", build_voice(inputs, roles, "waveform"))
        styles = path.with_name("voices.npz")
        write_styles(styles, "expr-voice-2-m", "expr-voice-2-f", shape=(rows, STYLE))
        return path

    return make


@pytest.fixture
def make_styletts2(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a voice as StyleTTS2-lite exports it."""

    def make() -> Path:
        inputs = {"tokens": (TensorProto.INT64, ["L"]), "style": [1, STYLE], "speed": []}
        model = build_voice(inputs, {name: name for name in inputs}, "output_wav")
        path = _write(tmp_path / "styletts2", "styletts.onnx", model)
        style = np.random.default_rng(3).standard_normal((1, STYLE), np.float32)
        with path.with_name("voices.bin").open("wb") as file:
            np.save(file, style)
        return path

    return make


@pytest.fixture
def make_melo(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a voice as sherpa-onnx exports MeloTTS."""

    def make() -> Path:
        inputs = {"x": _TOKENS, "x_lengths": _LENGTHS, "tones": _TOKENS}
        roles = {"tokens": "x", "tones": "tones", "speaker": "sid", **_SCALED}
        metadata = {
            "sample_rate": "44100",
            "n_speakers": "1",
            "speaker_id": "5",
            "language": "English",
            "comment": "melo",
            "version": "2",
            "add_blank": "1",
        }
        model = build_voice(
            {**inputs, "sid": (TensorProto.INT64, [1]), **_SCALES}, roles, "y", metadata=metadata
        )
        symbols = ("_", "hh", "ah", "l", "ow", "w", "er", "d", ",", ".")
        path = _write(tmp_path / "melo", "melo.onnx", model, *symbols)
        words = "hello hh ah l ow 7 8 7 9\nworld w er l d 7 9 7 7\n"
        path.with_name("lexicon.txt").write_text(words, encoding="utf-8")
        return path

    return make


@pytest.fixture
def make_matcha(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes Matcha as icefall exports it, with a vocoder."""

    def make(vocoder: onnx.ModelProto | None = None) -> Path:
        inputs = {"x": _TOKENS, "x_length": _LENGTHS, "noise_scale": [1], "length_scale": [1]}
        metadata = {
            "model_type": "matcha-tts",
            "sample_rate": "22050",
            "n_speakers": "1",
            "language": "English",
            "voice": "en-us",
            "has_espeak": "1",
            "use_eos_bos": "1",
            "add_blank": "1",
            "pad_id": "0",
            "version": "1",
            "num_ode_steps": "3",
        }
        roles = {"tokens": "x", **_SCALED}
        model = build_voice(inputs, roles, "mel", metadata=metadata, mel=True)
        symbols = "_^$ abcdefhijklmnoprstuvwxzæðŋɐɑɔəɚɛɜɡɪɹɾʃʊʌʒˈˌːθᵻ.,!?"
        path = _write(tmp_path / "matcha", "model-steps-3.onnx", model, *symbols)
        name = "hifigan_v2.onnx" if vocoder is None else "vocos-22khz-univ.onnx"
        onnx.save(vocoder or build_vocoder(), path.with_name(name))
        return path

    return make


@pytest.fixture
def make_matcha_vocos(make_matcha: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that writes Matcha with a Vocos vocoder."""
    return lambda: make_matcha(build_vocos())


@pytest.fixture(scope="session")
def supertonic_files(made_once: Callable[..., Path]) -> Path:
    """Return the folder of a tiny voice of Supertonic's structure, not to be changed."""
    pytest.importorskip("torch")
    from benchmarks.voices.supertonic import TINY, write_voice

    return made_once("supertonic", lambda folder: write_voice(folder, TINY))


@pytest.fixture
def make_supertonic(supertonic_files: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a tiny voice of Supertonic's structure."""

    def make() -> Path:
        shutil.copytree(supertonic_files, tmp_path / "supertonic")
        return tmp_path / "supertonic" / "onnx" / "duration_predictor.onnx"

    return make
