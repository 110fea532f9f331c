"""Verdicts on runtimes agree with what the runtimes say themselves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_model, make_node
from tts_compress.cli import main
from tts_compress.compression import compress
from tts_compress.errors import ModelError, RecipeError
from tts_compress.inspection.check import check_runtime, find_runtimes, runtime_names
from tts_compress.models import open_model
from tts_compress.onnx.session import open_session

_INSTALLED = ".".join(onnxruntime.__version__.split(".")[:2])


def _graph(
    op: str, *, element: int = TensorProto.FLOAT, inputs: int = 1, domain: str = "", opset: int = 17
) -> onnx.ModelProto:
    """Return a graph of one operator on tensors of shape [1, 4, 4]."""
    names = [f"in{number}" for number in range(inputs)]
    return make_model(
        [make_node(op, " ".join(names), "out", domain=domain)],
        dict.fromkeys(names, (element, [1, 4, 4])),
        {"out": (element, None)},
        opset=opset,
        domains=(domain,) if domain else (),
    )


def _with_function() -> onnx.ModelProto:
    model = _graph("Twice", domain="own")
    body = [make_node("Add", "x x", "y")]
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "Twice", ["x"], ["y"], body, opsets))
    return model


def _of_ir(version: int) -> onnx.ModelProto:
    model = _graph("Relu")
    model.ir_version = version
    return model


_GRAPHS = {
    "float": _graph("Conv", inputs=2),
    "half": _graph("Conv", inputs=2, element=TensorProto.FLOAT16),
    "double": _graph("Conv", inputs=2, element=TensorProto.DOUBLE),
    "bfloat16": _graph("MatMul", inputs=2, element=TensorProto.BFLOAT16),
    "codes": _graph("Max", inputs=2, element=TensorProto.UINT8),
    "unknown": _graph("Nothing", domain="com.microsoft"),
    "fused": _graph("QuickGelu", domain="com.microsoft"),
    "function": _with_function(),
    "expanded": _graph("HardSwish"),
    "newer opset": _graph("Relu", opset=99),
    "newer IR": _of_ir(99),
}


@pytest.fixture
def open_graph(tmp_path: Path) -> Callable[[onnx.ModelProto], Any]:
    def save(graph: onnx.ModelProto) -> Any:
        onnx.save(graph, tmp_path / "graph.onnx")
        return open_model(f"onnx:{tmp_path / 'graph.onnx'}")

    return save


@pytest.mark.parametrize("name", _GRAPHS)
def test_onnxruntime_opens_what_it_is_said_to_play(
    name: str, open_graph: Callable[[onnx.ModelProto], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the lists alone; besides, `check` opens what the onnxruntime here is said to play."""
    try:
        open_session(_GRAPHS[name], name)
        opened = True
    except ModelError:
        opened = False
    assert opened == (name not in {"double", "bfloat16", "unknown", "newer opset", "newer IR"})
    lists_alone = "tts_compress.inspection.check.open_session"
    monkeypatch.setattr(lists_alone, lambda *_, **__: None)
    assert check_runtime(open_graph(_GRAPHS[name]), f"onnxruntime:{_INSTALLED}").plays == opened


@pytest.mark.parametrize("name", [name for name in _GRAPHS if name != "newer opset"])
def test_openvino_opens_what_it_is_said_to_play(
    name: str, open_graph: Callable[[onnx.ModelProto], Any]
) -> None:
    openvino: Any = pytest.importorskip("openvino")
    try:
        openvino.Core().read_model(_GRAPHS[name].SerializeToString())
        opened = True
    except RuntimeError:
        opened = False
    assert opened == (name not in {"unknown", "function"})
    assert check_runtime(open_graph(_GRAPHS[name]), "openvino").plays == opened


def test_lists_are_those_of_the_installed_onnxruntime() -> None:
    """An update of the package that brings operators asks for a release in the data file."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    if not hasattr(state, "get_all_opkernel_def"):
        pytest.skip("this build of onnxruntime does not report its kernels")
    schemas: Any = onnx.defs.get_all_schemas_with_history()
    functions = {
        f"ai.onnx.{schema.name}"
        for schema in schemas
        if schema.domain == "" and (schema.has_function or schema.has_context_dependent_function)
    }
    kernels = {
        f"{kernel.domain or 'ai.onnx'}.{kernel.op_name}"
        for kernel in state.get_all_opkernel_def()
        if kernel.provider == "CPUExecutionProvider" and "nchwc" not in kernel.domain
    } - {"ai.onnx.MemcpyFromHost", "ai.onnx.MemcpyToHost"}
    wanted, *_ = find_runtimes(f"onnxruntime:{_INSTALLED}")
    assert wanted.release == _INSTALLED
    assert wanted.operators - functions <= kernels
    assert kernels <= wanted.operators


@pytest.mark.parametrize("name", runtime_names())
def test_every_shipped_file_is_sound(name: str) -> None:
    found = find_runtimes(name)
    for runtime in found:
        assert runtime.operators
        assert runtime.release in runtime.file.releases
    newest = found[0].operators
    assert all(runtime.operators <= newest for runtime in found)


def test_codes_of_int8_are_compared_only_since_a_release(
    open_graph: Callable[[onnx.ModelProto], Any],
) -> None:
    """Artifacts of `int8` do: onnxruntime 1.23 has "no implementation for Max(13)"."""
    model = open_graph(_GRAPHS["codes"])
    verdict = check_runtime(model, "onnxruntime:1.23.2")
    assert (verdict.release, verdict.plays) == ("1.23", False)
    assert verdict.missing == {"ai.onnx.Max of uint8": 1}
    assert verdict.since == "1.24"
    assert check_runtime(model, "web:1.26").plays
    assert not check_runtime(model, "web:1.22").plays


def test_artifact_is_pointed_to_the_portable_form(
    open_graph: Callable[[onnx.ModelProto], Any],
) -> None:
    """Its original is not: no scheme takes operators out of that."""
    weighted = _graph("MatMul", inputs=2)
    weight = np.ones((4, 2048), np.float32)
    weighted.graph.initializer.append(numpy_helper.from_array(weight, "in1"))
    del weighted.graph.input[1]
    manifest = compress(open_graph(weighted), "int8-weight-only").manifest
    fused = _graph("QLinearConv", domain="com.microsoft")
    artifact = open_graph(weighted).with_graphs({"": fused}, manifest)
    verdict = check_runtime(artifact, "openvino")
    assert verdict.missing == {"com.microsoft.QLinearConv": 1}
    assert verdict.advice is not None
    assert "`--scheme int8 --format qdq`" in verdict.advice
    original = check_runtime(open_graph(fused), "openvino")
    assert original.advice == "the original has them: no scheme takes them out"


@pytest.mark.slow
def test_what_only_documents_decide_is_said_so(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tiny_path), "--runtime", "coreml"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "plays, according to its documentation" in said
    assert "of them, which onnxruntime computes: " in said
    assert main(["check", str(tiny_path), "--runtime", "all", "--json"]) == 1
    verdicts = {v["runtime"]: v for v in json.loads(capsys.readouterr().out)["runtimes"]}
    refusing = {name for name, verdict in verdicts.items() if not verdict["plays"]}
    fixed = {"executorch", "litert", "qnn", "rknn"}
    assert refusing == fixed | {"sherpa-onnx"}
    assert all("are not fixed" in verdicts[name]["problems"][0] for name in fixed)
    keys = "metadata lacks comment, language, n_speakers, sample_rate"
    assert keys in verdicts["sherpa-onnx"]["problems"][0]


@pytest.mark.slow
def test_coreml_takes_no_codes(compressed: Callable[[str], Path]) -> None:
    """Its provider lists no operators of codes: FP16 is the form for it."""
    codes = check_runtime(open_model(compressed("int8-static")), "coreml")
    assert {"ai.onnx.QuantizeLinear", "ai.onnx.DequantizeLinear"} <= codes.on_fallback.keys()
    assert codes.advice == "compress the original with `--scheme fp16` for it"
    half = check_runtime(open_model(compressed("fp16")), "coreml")
    assert half.advice is None
    assert not any(name.endswith("Linear") for name in half.on_fallback)


_MINE = """version = 1
summary = "mine"
evidence = "code"
source = "its code"
[releases]
"2" = {}
[operators]
"ai.onnx" = ["Max"]
"""


def test_a_runtime_is_one_file(tmp_path: Path, open_graph: Callable[..., Any]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(_MINE, encoding="utf-8")
    assert check_runtime(open_graph(_GRAPHS["codes"]), str(path)).plays
    assert not check_runtime(open_graph(_GRAPHS["float"]), str(path)).plays
    path.write_text(_MINE + '[added]\n"3" = ["ai.onnx.Max"]\n', encoding="utf-8")
    with pytest.raises(RecipeError, match="releases that are not listed"):
        find_runtimes(str(path))


def test_a_runtimes_path_may_have_a_colon(tmp_path: Path, open_graph: Callable[..., Any]) -> None:
    """As that of every drive on Windows has."""
    path = tmp_path / "c:" / "mine.toml"
    path.parent.mkdir()
    path.write_text(_MINE, encoding="utf-8")
    graph = open_graph(_GRAPHS["codes"])
    found = [check_runtime(graph, f"{path}{release}") for release in ("", ":2", ":3")]
    assert [verdict.unknown_release for verdict in found] == [None, None, "3"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tensorrt", "shipped: coreml, executorch, litert, onnxruntime"),
        ("onnxruntime:1.9", "older than all that are known; known releases of onnxruntime: 1.20"),
        ("web:latest", "'latest' is no release; known releases"),
    ],
)
def test_bad_names_are_refused(
    name: str, said: str, open_graph: Callable[[onnx.ModelProto], Any], refused: Callable[..., str]
) -> None:
    assert said in refused("check", open_graph(_GRAPHS["float"]).spec, "--runtime", name)


def test_a_graph_that_onnxruntime_here_does_not_open_does_not_play(
    open_graph: Callable[[onnx.ModelProto], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its operators are all known; in opset 11 none of them dequantizes by channel."""
    scale, zero = np.ones(4, np.float32), np.zeros(4, np.int8)
    model = _graph("DequantizeLinear", element=TensorProto.INT8, opset=11)
    model.graph.node[0].input.extend(["scale", "zero"])
    model.graph.node[0].attribute.append(helper.make_attribute("axis", 1))
    model.graph.initializer.append(numpy_helper.from_array(scale, "scale"))
    model.graph.initializer.append(numpy_helper.from_array(zero, "zero"))
    spec = open_graph(model).spec
    assert main(["check", spec, "--runtime", f"onnxruntime:{_INSTALLED}"]) == 1
    said = capsys.readouterr().out
    assert "does not play" in said
    assert f"{onnxruntime.__version__} is installed here, and onnxruntime cannot open" in said


def test_a_release_that_is_not_known_is_said_so(
    open_graph: Callable[[onnx.ModelProto], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer about 1.31 to a question about 1.99 read as one about 1.99."""
    newest, spec = find_runtimes("onnxruntime")[0].release, open_graph(_GRAPHS["float"]).spec
    assert main(["check", spec, "--runtime", "onnxruntime:1.99"]) == 0
    assert f"1.99 is not known; judged as {newest}" in " ".join(capsys.readouterr().out.split())
    assert main(["check", spec, "--runtime", "onnxruntime:1.99", "--json"]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)["runtimes"]
    assert (verdict["release"], verdict["unknown_release"]) == (newest, "1.99")
    assert main(["check", spec, "--runtime", f"onnxruntime:{newest}.1"]) == 0
    assert "not known" not in capsys.readouterr().out


def test_a_function_that_calls_itself_is_a_model_error(
    open_graph: Callable[[onnx.ModelProto], Any],
) -> None:
    model = _graph("Twice", domain="own")
    body = [make_node("Twice", "x", "y", domain="own")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function("own", "Twice", ["x"], ["y"], body, opsets))
    with pytest.raises(ModelError, match="functions cannot be expanded"):
        check_runtime(open_graph(model), "onnxruntime")
