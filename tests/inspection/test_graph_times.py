"""Shares of the time of a voice in onnxruntime, and how the command shows them."""

import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graphs import make_model
from tts_compress.cli import main
from tts_compress.errors import ModelError
from tts_compress.inspection import components
from tts_compress.inspection.components import speed_ratio, time_shares
from tts_compress.models import load, open_model
from tts_compress.models.base import GraphModel, Model
from tts_compress.onnx.session import Feeds, _by_operator, group_of

_NAMES = ("enc_p", "dp", "flow", "dec")


@pytest.mark.parametrize(
    ("operator", "component"),
    [
        ("/dec/resblocks.0/convs.1/Conv", "dec"),
        ("/enc_p/encoder/dec/Add", "enc_p"),
        ("voice.dec.ups.2.weight.equalized.dequantized/DequantizeLinear", "dec"),
        ("/dp/flows.3/Slice_token_12", "dp"),
        ("/dp/flow/Add", "dp"),
        ("/decoder/Conv", ""),
        ("Gelu_token_283", ""),
        ("", ""),
    ],
)
def test_operators_belong_to_components_by_name(operator: str, component: str) -> None:
    assert group_of(operator, _NAMES) == component


def test_only_the_second_time_counts_and_only_kernels() -> None:
    def event(name: str, at: int, microseconds: int) -> dict[str, Any]:
        return {"name": name, "ts": at, "dur": microseconds}

    events = [
        event("model_loading_array", 0, 900),
        event("model_run", 100, 90),
        event("/dec/Conv_kernel_time", 110, 50),
        event("model_run", 200, 90),
        event("/dec/Conv_fence_before", 209, 8),
        event("/dec/Conv_kernel_time", 210, 30),
        event("/Cast_kernel_time", 250, 10),
        event("tts_compress.noise.0/tiled_kernel_time", 255, 500),
        event("/dec/Add_kernel_time", 260, 5),
    ]
    found = _by_operator(events, 1)
    assert found == pytest.approx({"/dec/Conv": 30e-6, "/Cast": 10e-6, "/dec/Add": 5e-6})


@pytest.mark.slow
def test_every_component_of_a_voice_has_its_share(compressed: Callable[[str], Path]) -> None:
    voice = load(compressed("int8-static"))
    found = time_shares(voice)
    assert list(found) == [*_NAMES, "other"]
    assert min(found.values()) > 0
    assert sum(found.values()) == pytest.approx(1)
    # Once more where another program interrupted an operator.
    assert found["other"] < 0.5 or time_shares(voice)["other"] < 0.5


def test_layers_that_decide_lengths_are_shown(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The encoder decides them too; its projection for the flow, which follows, does not."""
    found, remark = _inspect(capsys, str(tiny_path), "--no-time")
    assert found["other_time_share"] is None
    assert all("time_share" not in part for part in found["components"])
    assert remark == ""
    deciding = {part["name"]: part["length_layers"] for part in found["components"]}
    assert "enc_p.encoder.ffn_layers.0.conv_1" in deciding["enc_p"]
    assert "enc_p.proj" not in deciding["enc_p"]
    assert {"dp.pre", "dp.proj"} < set(deciding["dp"])
    assert deciding["flow"] == deciding["dec"] == []
    assert main(["inspect", str(tiny_path), "--no-time"]) == 0
    shown = capsys.readouterr().out
    count = len(deciding["dp"])
    assert "lengths" in shown
    assert f"{count} of {count}" in shown


def _inspect(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, Any], str]:
    assert main(["inspect", "--json", *options]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


@pytest.mark.slow
def test_a_small_voice_is_timed_by_default(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, remark = _inspect(capsys, str(tiny_path))
    shares = [part["time_share"] for part in found["components"]]
    assert sum(shares) + found["other_time_share"] == pytest.approx(1)
    assert "--no-time" in remark
    assert main(["inspect", str(tiny_path)]) == 0
    shown = capsys.readouterr().out
    assert "time" in shown.splitlines()[2]
    assert "other" in shown


@pytest.mark.slow
def test_a_large_model_is_timed_on_request(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(components, "_QUICK", 0)
    found, remark = _inspect(capsys, str(tiny_path))
    assert found["other_time_share"] is None
    assert "--time times them" in remark
    found, _ = _inspect(capsys, str(tiny_path), "--time")
    assert found["other_time_share"] is not None


@pytest.mark.slow
def test_a_model_that_cannot_speak_is_shown_without_times_unless_they_are_requested(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system that clones voices cannot speak before it is given one."""
    monkeypatch.setattr(components.time_shares, "__defaults__", (" ",))
    found, remark = _inspect(capsys, str(tiny_path))
    assert found["other_time_share"] is None
    assert "not timed: nothing to speak" in remark
    assert main(["inspect", str(tiny_path), "--time"]) == 2
    assert "nothing to speak" in capsys.readouterr().err


def test_a_bare_graph_has_no_times(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, remark = _inspect(capsys, f"onnx:{tiny_path}")
    assert found["other_time_share"] is None
    assert remark == ""
    assert main(["inspect", f"onnx:{tiny_path}", "--time"]) == 2
    assert "speaks no texts" in capsys.readouterr().err


_SIZE = 256


def _products(path: Path, count: int) -> Model:
    """Return a graph of so many matrix products, one behind the other."""
    weight = np.random.default_rng(0).normal(size=(_SIZE, _SIZE)).astype(np.float32) / 16
    nodes = [
        helper.make_node("MatMul", [f"h{i}" if i else "x", "w"], [f"h{i + 1}"])
        for i in range(count)
    ]
    shape: list[str | int] = ["t", _SIZE]
    onnx.save(make_model(nodes, {"x": shape}, {f"h{count}": shape}, {"w": weight}, opset=17), path)
    return open_model(f"onnx:{path}")


def test_forty_times_the_work_takes_longer(tmp_path: Path) -> None:
    """In either order: nothing is lost by being second."""
    one, many = _products(tmp_path / "one.onnx", 1), _products(tmp_path / "many.onnx", 40)
    feeds: Feeds = {"x": np.ones((200, _SIZE), np.float32)}
    fast, slow = speed_ratio(many, one, feeds), speed_ratio(one, many, feeds)
    assert fast is not None
    assert slow is not None
    assert fast > 2
    assert slow < 0.5


def test_other_programs_do_not_lengthen_the_time_of_a_model(tmp_path: Path) -> None:
    """Devices compute while the processor waits: there it is the time that passes."""
    model: Any = _products(tmp_path / "one.onnx", 1)
    elsewhere = model._with(sessions=SimpleNamespace(provider="CUDAExecutionProvider"))
    assert components._clock(model) is process_time
    assert components._clock(elsewhere) is perf_counter


def test_what_cannot_run_by_itself_has_no_speed(tmp_path: Path, tiny_path: Path) -> None:
    graph = _products(tmp_path / "one.onnx", 1)
    assert speed_ratio(graph, graph) is None
    assert speed_ratio(graph, load(tiny_path)) is None


@pytest.mark.parametrize(("ratio", "warned"), [(0.65, True), (1.9, False), (None, False)])
def test_a_slower_model_is_remarked_when_it_is_made(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ratio: float | None,
    warned: bool,
) -> None:
    monkeypatch.setattr("tts_compress.inspection.components.speed_ratio", lambda *_: ratio)
    graph = _products(tmp_path / "one.onnx", 1).spec
    arguments = ["quantize", graph, "--scheme", "fp16", "--output", str(tmp_path / "x")]
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["speed_ratio"] == ratio
    assert ("slower than the original on this processor (0.65 times" in printed.err) is warned


@pytest.mark.slow
def test_without_time_nothing_speaks(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["quantize", str(tiny_path), "--scheme", "fp16", "--output", str(tmp_path / "x")]
    assert main([*arguments, "--no-time", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["speed_ratio"], printed["sound"]) == (None, None)


def test_a_voice_that_fails_while_it_is_timed_is_a_model_error(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own runtime raises errors of every kind."""
    voice = load(tiny_path)

    class Failing:
        def speak(self, text: str) -> None:
            raise RuntimeError(f"Non-zero status code for {text[:5]}")

    monkeypatch.setattr(type(voice), "open_runtime", lambda *_, **__: Failing())
    with pytest.raises(ModelError, match=r"cannot be run: Non-zero status code for Hello"):
        speed_ratio(voice, voice)


@pytest.mark.slow
def test_every_weight_is_of_one_part(
    tiny: GraphModel,
    tiny_path: Path,
    compressed: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of the decoder lie in the stages, and take a quarter where they are integers."""
    bytes_of = []
    for model in (tiny_path, compressed("int8")):
        assert main(["inspect", str(model), "--stages", "--no-time", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        stages = [stage["weight_bytes"] for stage in shown["stages"]]
        parts = {part["name"]: part["size_bytes"] for part in shown["components"]}
        assert sum(stages) >= parts["dec"]
        assert shown["encoder"]["weight_bytes"] >= parts["enc_p"]
        bytes_of.append(sum(stages))
    whole = sum(tensor.ByteSize() for tensor in tiny.graph().graph.initializer)
    assert bytes_of[0] < whole
    assert bytes_of[1] < 0.6 * bytes_of[0]


@pytest.mark.slow
def test_the_table_has_weights_context_and_largest_tensor(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tiny_path), "--stages", "--no-time"]) == 0
    (head,) = (line for line in capsys.readouterr().out.splitlines() if "stage reads" in line)
    for column in ("before", "behind", "makes", "values a step, at most", "weights"):
        assert column in head
