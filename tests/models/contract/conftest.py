"""Tiny seeded graphs with the inputs of real systems, and the files beside them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHANNELS, STYLE, HOP = 32, 256, 64


class GraphBuilder:
    """Collects operators and seeded weights."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(7)

    def weight(self, name: str, *shape: int) -> str:
        """Add a weight of variance one over its inputs."""
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        values = self._random.standard_normal(shape, np.float32) * np.float32(scale)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def constant(self, name: str, values: Any, dtype: Any = np.int64) -> str:
        """Add a constant."""
        self.weights.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add an operator, named by scope as torch names them."""
        name = f"/{output.replace('.', '/')}/{operator}"
        self.nodes.append(helper.make_node(operator, inputs, [output], name, **attributes))
        return output


def build_voice(
    inputs: dict[str, tuple[int, list[Any]]],
    roles: dict[str, str],
    output: str,
    *,
    metadata: dict[str, str] | None = None,
    mel: bool = False,
) -> onnx.ModelProto:
    """Return a graph that speaks: an embedding, two convolutions and an upsampling one.

    Args:
        inputs: Types and shapes by name, in order.
        roles: Names of the inputs that are tokens, style, speed, noise, tones or speaker.
        output: Name of the audio.
        metadata: Properties of the file.
        mel: True to stop before the upsampling.
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
        add_upsampling(g, hidden, output)
    made: list[Any] = [1, CHANNELS, "T"] if mel else ["samples"]
    graph = helper.make_graph(
        g.nodes,
        "voice",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, made)],
        g.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, metadata or {})
    onnx.checker.check_model(model)
    return model


def add_upsampling(g: GraphBuilder, hidden: str, output: str) -> None:
    """Add the operators that make audio of channels."""
    g.weight("decoder.up.weight", CHANNELS, 1, HOP)
    g.add("ConvTranspose", [hidden, "decoder.up.weight"], "decoder.up", strides=[HOP])
    g.add("Tanh", ["decoder.up"], "decoder.audio")
    g.add("Reshape", ["decoder.audio", g.constant("decoder.flat", [-1])], output)


def build_vocoder() -> onnx.ModelProto:
    """Return a graph that makes audio of a mel spectrogram."""
    g = GraphBuilder()
    g.weight("generator.pre.weight", CHANNELS, CHANNELS, 3)
    g.add("Conv", ["mel", "generator.pre.weight"], "generator.pre", pads=[1, 1])
    g.add("LeakyRelu", ["generator.pre"], "generator.act", alpha=0.1)
    add_upsampling(g, "generator.act", "audio")
    graph = helper.make_graph(
        g.nodes,
        "vocoder",
        [helper.make_tensor_value_info("mel", TensorProto.FLOAT, ["N", CHANNELS, "L"])],
        [helper.make_tensor_value_info("audio", TensorProto.FLOAT, ["samples"])],
        g.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"model_type": "hifigan"})
    return model


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
    graph = helper.make_graph(
        g.nodes,
        "vocos",
        [helper.make_tensor_value_info("mels", TensorProto.FLOAT, ["N", CHANNELS, "L"])],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, ["N", bins, "L"]) for o in outputs],
        g.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    stated = {"n_fft": str(n_fft), "hop_length": str(n_fft // 4), "win_length": str(n_fft)}
    helper.set_model_props(model, {"model_type": "vocos"} | stated | (metadata or {}))
    return model


def write_styles(path: Path, *names: str, shape: tuple[int, ...] = (510, 1, STYLE)) -> None:
    """Write a style file as kokoro-onnx publishes it: an `.npz` under any name."""
    random = np.random.default_rng(3)
    arrays: dict[str, Any] = {name: random.standard_normal(shape, np.float32) for name in names}
    with path.open("wb") as file:
        np.savez(file, **arrays)


@pytest.fixture
def make_kokoro(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a voice with Kokoro's inputs and its style file."""

    def make(*, speed: int = TensorProto.FLOAT, tokens: str = "tokens", **_: Any) -> Path:
        inputs: dict[str, tuple[int, list[Any]]] = {
            tokens: (TensorProto.INT64, [1, "L"]),
            "style": (TensorProto.FLOAT, [1, STYLE]),
            "speed": (speed, [1]),
        }
        roles = {"tokens": tokens, "style": "style", "speed": "speed"}
        folder = tmp_path / "kokoro"
        folder.mkdir()
        onnx.save(build_voice(inputs, roles, "audio"), folder / "kokoro.onnx")
        write_styles(folder / "voices-v1.0.bin", "af_heart", "am_adam")
        return folder / "kokoro.onnx"

    return make


@pytest.fixture
def make_vits(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a voice as icefall exports it, speaking characters."""

    def make(*, speakers: int = 1, **metadata: str) -> Path:
        scalar = (TensorProto.FLOAT, [1])
        inputs: dict[str, tuple[int, list[Any]]] = {
            "x": (TensorProto.INT64, ["N", "L"]),
            "x_length": (TensorProto.INT64, ["N"]),
            "noise_scale": scalar,
            "length_scale": scalar,
            "noise_scale_w": scalar,
        }
        roles = {"tokens": "x", "noise": "noise_scale", "speed": "length_scale"}
        if speakers > 1:
            inputs["sid"] = (TensorProto.INT64, ["N"])
            roles["speaker"] = "sid"
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
        folder = tmp_path / "vits"
        folder.mkdir()
        onnx.save(model, folder / "vits.onnx")
        symbols = " abcdefghijklmnopqrstuvwxyz.,'"
        lines = [f"{symbol} {number}\n" for number, symbol in enumerate(symbols, 1)]
        (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")
        return folder / "vits.onnx"

    return make


@pytest.fixture
def make_kitten(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a voice with KittenTTS' inputs, and styles of some rows."""

    def make(rows: int = 1) -> Path:
        inputs: dict[str, tuple[int, list[Any]]] = {
            "input_ids": (TensorProto.INT64, [1, "L"]),
            "style": (TensorProto.FLOAT, [1, STYLE]),
            "speed": (TensorProto.FLOAT, [1]),
        }
        roles = {"tokens": "input_ids", "style": "style", "speed": "speed"}
        folder = tmp_path / "kitten"
        folder.mkdir()
        onnx.save(build_voice(inputs, roles, "waveform"), folder / "kitten.onnx")
        write_styles(folder / "voices.npz", "expr-voice-2-m", "expr-voice-2-f", shape=(rows, STYLE))
        return folder / "kitten.onnx"

    return make


@pytest.fixture
def make_styletts2(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a voice as StyleTTS2-lite exports it."""

    def make() -> Path:
        inputs: dict[str, tuple[int, list[Any]]] = {
            "tokens": (TensorProto.INT64, ["L"]),
            "style": (TensorProto.FLOAT, [1, STYLE]),
            "speed": (TensorProto.FLOAT, []),
        }
        roles = {name: name for name in inputs}
        folder = tmp_path / "styletts2"
        folder.mkdir()
        onnx.save(build_voice(inputs, roles, "output_wav"), folder / "styletts.onnx")
        style = np.random.default_rng(3).standard_normal((1, STYLE), np.float32)
        with (folder / "voices.bin").open("wb") as file:
            np.save(file, style)
        return folder / "styletts.onnx"

    return make


@pytest.fixture
def make_melo(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a voice as sherpa-onnx exports MeloTTS."""

    def make() -> Path:
        scalar = (TensorProto.FLOAT, [1])
        inputs: dict[str, tuple[int, list[Any]]] = {
            "x": (TensorProto.INT64, ["N", "L"]),
            "x_lengths": (TensorProto.INT64, ["N"]),
            "tones": (TensorProto.INT64, ["N", "L"]),
            "sid": (TensorProto.INT64, [1]),
            "noise_scale": scalar,
            "length_scale": scalar,
            "noise_scale_w": scalar,
        }
        roles = {"tokens": "x", "tones": "tones", "speaker": "sid"}
        roles |= {"noise": "noise_scale", "speed": "length_scale"}
        metadata = {
            "sample_rate": "44100",
            "n_speakers": "1",
            "speaker_id": "5",
            "language": "English",
            "comment": "melo",
            "version": "2",
            "add_blank": "1",
        }
        folder = tmp_path / "melo"
        folder.mkdir()
        onnx.save(build_voice(inputs, roles, "y", metadata=metadata), folder / "melo.onnx")
        symbols = ["_", "hh", "ah", "l", "ow", "w", "er", "d", ",", "."]
        lines = [f"{symbol} {number}\n" for number, symbol in enumerate(symbols)]
        (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")
        words = "hello hh ah l ow 7 8 7 9\nworld w er l d 7 9 7 7\n"
        (folder / "lexicon.txt").write_text(words, encoding="utf-8")
        return folder / "melo.onnx"

    return make


@pytest.fixture
def make_matcha(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes Matcha as icefall exports it, with a vocoder."""

    def make(vocoder: onnx.ModelProto | None = None) -> Path:
        scalar = (TensorProto.FLOAT, [1])
        inputs: dict[str, tuple[int, list[Any]]] = {
            "x": (TensorProto.INT64, ["N", "L"]),
            "x_length": (TensorProto.INT64, ["N"]),
            "noise_scale": scalar,
            "length_scale": scalar,
        }
        roles = {"tokens": "x", "noise": "noise_scale", "speed": "length_scale"}
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
        folder = tmp_path / "matcha"
        folder.mkdir()
        model = build_voice(inputs, roles, "mel", metadata=metadata, mel=True)
        onnx.save(model, folder / "model-steps-3.onnx")
        if vocoder is None:
            onnx.save(build_vocoder(), folder / "hifigan_v2.onnx")
        else:
            onnx.save(vocoder, folder / "vocos-22khz-univ.onnx")
        symbols = "_^$ abcdefhijklmnoprstuvwxzæðŋɐɑɔəɚɛɜɡɪɹɾʃʊʌʒˈˌːθᵻ.,!?"
        lines = [f"{symbol} {number}\n" for number, symbol in enumerate(symbols)]
        (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")
        return folder / "model-steps-3.onnx"

    return make


@pytest.fixture
def make_matcha_vocos(make_matcha: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that writes Matcha with a Vocos vocoder."""

    def make() -> Path:
        return make_matcha(build_vocos())

    return make


@pytest.fixture(scope="session")
def supertonic_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny voice of Supertonic's structure, not to be changed."""
    pytest.importorskip("torch")
    from benchmarks.supertonic import TINY, write_voice

    folder = tmp_path_factory.mktemp("supertonic") / "voice"
    write_voice(folder, TINY)
    return folder


@pytest.fixture
def make_supertonic(supertonic_files: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a tiny voice of Supertonic's structure."""

    def make() -> Path:
        shutil.copytree(supertonic_files, tmp_path / "supertonic")
        return tmp_path / "supertonic" / "onnx" / "duration_predictor.onnx"

    return make
