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
from onnx import TensorProto

from tests.graphs import make_body, make_model, make_node
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
    held = {f"c{i}": np.array(constant) for i, constant in enumerate(constants)}
    nodes = [make_node(operator, " ".join(["x", *held]), "y")]
    return make_model(nodes, {"x": ["n"]}, {"y": None}, held, opset=17)


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
    body = make_body(
        [make_node("Identity", "on", "go"), make_node("Abs", "s", "next")],
        {"i": (TensorProto.INT64, []), "on": (TensorProto.BOOL, []), "s": ["n"]},
        {"go": (TensorProto.BOOL, []), "next": ["n"]},
    )
    loop = make_node("Loop", "- true x", "y", body=body)
    return make_model([loop], {"x": ["n"]}, {"y": ["n"]}, {"true": np.array(True)}, opset=17)


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
