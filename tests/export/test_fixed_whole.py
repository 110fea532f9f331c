"""Voices that take statistics over time have fixed sizes: masked, what they say is the same."""

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.models.contract.conftest import STYLE, GraphBuilder, write_styles
from tts_compress.errors import ModelError
from tts_compress.export.fixed import export_fixed
from tts_compress.inspection.check import check_runtime
from tts_compress.models import load, open_model

_WIDTH, _FRAMES = 8, 3
_PLAYER: Any = run_path(str(Path(__file__).parents[2] / "examples" / "fixed" / "play.py"))["Player"]


def _norm(g: GraphBuilder, source: str, name: str) -> str:
    """Normalize over time, and scale by the style."""
    scale, shift = np.linspace(0.5, 1.5, _WIDTH), np.linspace(-0.2, 0.2, _WIDTH)
    g.constant(f"{name}.scale", scale, np.float32)
    g.constant(f"{name}.shift", shift, np.float32)
    inputs = [source, f"{name}.scale", f"{name}.shift"]
    g.add("InstanceNormalization", inputs, f"{name}.normal", epsilon=1e-3)
    g.weight(f"{name}.fc.weight", STYLE, _WIDTH)
    g.add("Gemm", ["style", f"{name}.fc.weight"], f"{name}.gamma")
    g.add("Unsqueeze", [f"{name}.gamma", g.constant(f"{name}.axis", [2])], f"{name}.column")
    scaled = g.add("Mul", [f"{name}.normal", f"{name}.column"], f"{name}.scaled")
    return g.add("LeakyRelu", [scaled], f"{name}.act", alpha=0.1)


def _conv(g: GraphBuilder, source: str, name: str, kernel: int = 3) -> str:
    g.weight(f"{name}.weight", _WIDTH, _WIDTH, kernel)
    return g.add("Conv", [source, f"{name}.weight"], f"{name}.out", pads=[kernel // 2] * 2)


def _encode(g: GraphBuilder) -> str:
    """Return frames: three for each token, through an LSTM both ways."""
    g.weight("encoder.emb.weight", 200, _WIDTH)
    g.add("Gather", ["encoder.emb.weight", "tokens"], "encoder.emb")
    g.add("Transpose", ["encoder.emb"], "encoder.first", perm=[1, 0, 2])
    for name in ("w", "r"):
        g.weight(f"encoder.lstm.{name}", 2, 4 * _WIDTH, _WIDTH)
    inputs = ["encoder.first", "encoder.lstm.w", "encoder.lstm.r"]
    g.add("LSTM", inputs, "encoder.both", hidden_size=_WIDTH, direction="bidirectional")
    summed = g.constant("encoder.directions", [1])
    g.add("ReduceSum", ["encoder.both", summed], "encoder.sum", keepdims=0)
    g.add("Transpose", ["encoder.sum"], "encoder.turned", perm=[1, 2, 0])
    g.constant("encoder.scales", [1, 1, _FRAMES], np.float32)
    return g.add("Resize", ["encoder.turned", "-", "encoder.scales"], "encoder.frames")


def _model(*, last: str = "Conv") -> onnx.ModelProto:
    """Return a graph as Kokoro's decoder is: two rates, a source of sines, norms."""
    g = GraphBuilder()
    frames = _encode(g)
    g.constant("source.scales", [1, 1, 4], np.float32)
    g.add("Resize", [frames, "-", "source.scales"], "source.curve", mode="linear")
    g.add("CumSum", ["source.curve", g.constant("source.axis", 2)], "source.phase")
    g.add("Sin", ["source.phase"], "source.sine")
    hidden = _norm(g, _conv(g, frames, "decoder.pre"), "decoder.norm0")
    g.weight("decoder.up.weight", _WIDTH, _WIDTH, 8)
    inputs = [hidden, "decoder.up.weight"]
    g.add("ConvTranspose", inputs, "decoder.up", strides=[4], pads=[2, 2])
    g.add("Pad", ["decoder.up", g.constant("pads", [0, 0, 1, 0, 0, 0])], "padded", mode="reflect")
    g.add("Pad", ["source.sine", "pads"], "source.padded", mode="edge")
    source = _conv(g, "source.padded", "decoder.source", 5)
    g.add("Div", [source, source], "source.ratio")  # none of what is zero behind the end
    g.add("Mul", ["source.ratio", source], "source.both")
    g.add("Add", ["padded", "source.both"], "decoder.sum")
    hidden = _norm(g, _conv(g, "decoder.sum", "decoder.conv1"), "decoder.norm1")
    if last == "CumSum":
        hidden = g.add("CumSum", [hidden, "source.axis"], "decoder.total")
    g.weight("decoder.post.weight", 1, _WIDTH, 7)
    g.add("Conv", [hidden, "decoder.post.weight"], "decoder.post", pads=[3, 3])
    g.add("Tanh", ["decoder.post"], "decoder.tanh")
    g.add("Reshape", ["decoder.tanh", g.constant("decoder.flat", [-1])], "audio")
    tokens = (onnx.TensorProto.INT64, [1, "L"])
    inputs_ = {"tokens": tokens, "style": [1, STYLE], "speed": [1]}
    return g.model(inputs_, {"audio": ["samples"]})


@pytest.fixture
def make_voice(tmp_path: Path) -> Callable[[onnx.ModelProto], Any]:
    """Return a function that makes a voice of a graph with Kokoro's inputs."""

    def make(model: onnx.ModelProto) -> Any:
        folder = tmp_path / "voice"
        folder.mkdir()
        onnx.save(model, folder / "kokoro.onnx")
        write_styles(folder / "voices-v1.0.bin", "af_heart")
        return load(folder / "kokoro.onnx")

    return make


def test_statistics_are_those_of_the_utterance(
    make_voice: Callable[[onnx.ModelProto], Any], tmp_path: Path
) -> None:
    """Norms are masked; the LSTM and the sines of the source stay with the encoder."""
    voice = make_voice(_model())
    files = export_fixed(voice, tmp_path / "out", [24, 60])
    player = _PLAYER(tmp_path / "out")
    assert len(player.config["reads"]) == 2
    assert player.config["sides"] == ["style"]
    device = {node.op_type for node in onnx.load(files[-1]).graph.node}
    assert device.isdisjoint({"LSTM", "CumSum", "Sin", "InstanceNormalization"})
    assert device >= {"Conv", "ConvTranspose", "ReduceSum", "Gemm"}
    assert check_runtime(open_model(f"onnx:{files[-1]}"), "qnn").on_fallback == {}
    session = onnxruntime.InferenceSession(voice.graph().SerializeToString())
    style = np.random.default_rng(0).standard_normal((1, STYLE)).astype(np.float32)
    for count in range(1, 21):
        ids = np.random.default_rng(count).integers(1, 150, (1, count))
        feeds = {"tokens": ids, "style": style, "speed": np.ones(1, np.float32)}
        (whole,) = session.run(None, feeds)
        assert whole.std() > 0.01
        sound = player.speak(ids[0].tolist(), style=style, tokens=ids)
        assert len(sound) == len(whole)
        assert np.abs(sound - whole).max() < 1e-5, count
    with pytest.raises(ValueError, match="63 frames, and the largest graph has 60"):
        player.speak([1] * 21, style=style, tokens=[[1] * 21])


def test_what_is_mostly_of_the_whole_time_is_refused(
    make_voice: Callable[[onnx.ModelProto], Any], tmp_path: Path
) -> None:
    voice = make_voice(_model(last="CumSum"))
    with pytest.raises(ModelError, match=r"cannot have fixed sizes: \d+ % of its.*2 × CumSum"):
        export_fixed(voice, tmp_path / "out", [24])
