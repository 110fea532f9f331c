"""Sessions of onnxruntime: it says nothing by itself, and reports nothing home."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tts_compress.errors import ModelError
from tts_compress.onnx.session import open_session, run_session

_SPEAK = """
import sys
import time
if sys.argv[2] == "ours":
    import tts_compress
import onnxruntime
import numpy as np
onnxruntime.InferenceSession(sys.argv[1]).run(None, {"x": np.ones(2, np.float32)})
"""


def _graph(operator: str, *constants: list[int]) -> onnx.ModelProto:
    found = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    held = [
        numpy_helper.from_array(np.array(c, np.int64), f"c{i}") for i, c in enumerate(constants)
    ]
    node = helper.make_node(operator, ["x", *(tensor.name for tensor in held)], ["y"])
    graph = helper.make_graph([node], "graph", [found], [made], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_its_own_lines_are_kept_from_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """An operator that fails is logged before it is raised, in colour and with its source file."""
    feeds = {"x": np.ones(4, np.float32)}
    for graph in (_graph("Reshape", [3, 5]), _graph("NoSuchOperator")):
        with pytest.raises(ModelError, match="voice"):
            run_session(open_session(graph, "voice", 1), feeds, "voice")
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it writes to other places")
def test_it_keeps_no_state_of_telemetry(tmp_path: Path) -> None:
    onnx.save(_graph("Relu"), tmp_path / "graph.onnx")
    written = {}
    for who in ("ours", "plain"):
        home = tmp_path / who
        home.mkdir()
        command = [sys.executable, "-c", _SPEAK, str(tmp_path / "graph.onnx"), who]
        clean = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
        places = {name: str(home) for name in ("HOME", "TMPDIR")}
        subprocess.run(command, env=clean | places, check=True)
        written[who] = [path.name for path in home.rglob("*")]
    assert written["ours"] == []
    if not written["plain"]:
        pytest.skip("this build of onnxruntime has no telemetry to turn off")


_RUN = """
import signal, sys, numpy as np, onnx
from tts_compress.onnx.session import open_session, run_session

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
session = open_session(onnx.load(sys.argv[1]), "voice", 1)
print("running", flush=True)
run_session(session, {"x": np.ones(2, np.float32)}, "voice")
"""


def _endless() -> onnx.ModelProto:
    def value(name: str, kind: int, *shape: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["go"]), helper.make_node("Abs", ["s"], ["next"])],
        "body",
        [value("i", TensorProto.INT64), value("on", TensorProto.BOOL), value("s", 1, "n")],
        [value("go", TensorProto.BOOL), value("next", 1, "n")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "true", "x"], ["y"], body=body)],
        "graph",
        [value("x", 1, "n")],
        [value("y", 1, "n")],
        [numpy_helper.from_array(np.array(True), "true")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.skipif(os.name != "posix", reason="signals are sent as POSIX has them")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_loop_without_an_end_can_be_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    """Only SIGKILL ended it: onnxruntime returns to Python when a graph has run."""
    onnx.save(_endless(), tmp_path / "endless.onnx")
    command = [sys.executable, "-c", _RUN, str(tmp_path / "endless.onnx")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"running\n"
            time.sleep(0.2)
            process.send_signal(number)
            assert process.wait(30) in {143, 130, -signal.SIGINT}
        finally:
            process.kill()
