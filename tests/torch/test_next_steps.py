"""Next steps of a compressed module, as docs/torch.md has it in a table.

Each row once ended in an error of torch's own.
"""

import copy
import io
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tts_compress import compress, manifest_of
from tts_compress.errors import ModelError
from tts_compress.torch.layers.base import build_layer

SCHEMES = ["int8", "int8-static", "int8-weight-only", "int4-weight-only", "bf16"]


class Net(nn.Module):
    """A layer of each kind; torch compiles no recurrent one in FP32, which 16 bits leave so."""

    def __init__(self, *, recurrent: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 64)
        self.rnn = nn.LSTM(64, 32, bidirectional=True, batch_first=True) if recurrent else None
        self.conv = nn.Conv1d(64, 64, 5, padding=2)
        self.mix = nn.Conv1d(64, 64, 1)
        self.up = nn.ConvTranspose1d(64, 32, 8, stride=4, padding=2)
        self.norm = nn.LayerNorm(32)
        self.inner, self.last = nn.Linear(32, 64), nn.Linear(64, 16)

    def forward(self, ids: Tensor) -> Tensor:
        """Return `[batch, time, 16]`."""
        x = self.embed(ids)
        x = x if self.rnn is None else self.rnn(x)[0]
        y = self.up(torch.relu(self.mix(self.conv(x.transpose(1, 2))))).transpose(1, 2)
        return torch.as_tensor(self.last(self.inner(self.norm(y))))


IDS = torch.arange(20).view(2, 10)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(params=SCHEMES)
def small(request: pytest.FixtureRequest) -> Any:
    """Return a compressed network that has run, and so has its final layout."""
    torch.manual_seed(0)
    calibration = [IDS] if request.param == "int8-static" else None
    net = Net(recurrent=request.param != "bf16").eval()
    module: nn.Module = compress(net, request.param, calibration=calibration)
    with torch.inference_mode():
        module(IDS)
    return module


def _unpickled(small: nn.Module) -> nn.Module:
    module: nn.Module = pickle.loads(pickle.dumps(small))  # noqa: S301  made here
    return module


def _saved(small: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(small, file)
    file.seek(0)
    module: nn.Module = torch.load(file, weights_only=False)
    return module


def test_it_is_copied_and_pickled(small: nn.Module) -> None:
    with torch.inference_mode():
        expected = small(IDS)
        for again in (copy.deepcopy(small), _unpickled(small), _saved(small)):
            assert torch.equal(again(IDS), expected)
            assert manifest_of(again) == manifest_of(small)
        copied = copy.deepcopy(small)
        assert all(key in copied.state_dict() for key in small.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("small", ["int8", "int8-weight-only", "int4-weight-only"], indirect=True)
def test_it_compiles_into_one_graph(small: nn.Module) -> None:
    """Every convolution broke the graph, because it asked for the range of its input.

    Static ranges are in one graph where they are exported strictly, below.
    """
    compiled = torch.compile(small, fullgraph=True, backend="aot_eager")
    with torch.inference_mode():
        expected = small(IDS)
        for _ in range(2):
            torch.testing.assert_close(compiled(IDS), expected)
    if manifest_of(small).scheme != "int4-weight-only":  # whose kernel has no derivative
        torch.testing.assert_close(compiled(IDS).detach(), expected)


@pytest.mark.parametrize(
    ("small", "strict"),
    [*((scheme, False) for scheme in SCHEMES), ("int8-static", True)],  # strict: as one graph
    indirect=["small"],
)
def test_it_is_exported_saved_and_read(small: nn.Module, strict: bool) -> None:
    program = torch.export.export(small, (IDS,), strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    whole = sum(parameter.nbytes for parameter in Net().parameters())
    assert len(file.getvalue()) < 0.8 * whole + 300_000  # the rest is the graph's text
    file.seek(0)
    again = torch.export.load(file).module()
    with torch.inference_mode():
        for _ in range(2):
            torch.testing.assert_close(again(IDS), small(IDS))


def test_an_export_keeps_lengths_open() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(64, 64, 3), nn.ReLU(), nn.ConvTranspose1d(64, 32, 8, stride=4))
    small = compress(net.eval(), "int8")
    shapes = ({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO},)
    program = torch.export.export(small, (torch.randn(2, 64, 9),), dynamic_shapes=shapes).module()
    x = torch.randn(3, 64, 40)
    with torch.inference_mode():
        torch.testing.assert_close(program(x), small(x))


def test_packed_weights_serve_the_graph_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a program that was read from a file packs them, once."""
    built: list[object] = []

    def counted(*given: Any) -> Any:
        built.append(given)
        return build_layer(*given)

    monkeypatch.setattr("tts_compress.torch.layers.integer.build_layer", counted)
    small = compress(nn.Linear(64, 64), "int8")
    x = torch.randn(3, 64)
    torch.compile(small, backend="aot_eager")(x)
    program = torch.export.export(small, (x,))
    program.module()(x)
    assert not built
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for _ in range(3):
        again(x)
    assert len(built) == 1


@pytest.mark.parametrize("small", ["int8", "int8-static"], indirect=True)
def test_what_cannot_record_integers_says_what_can(
    small: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "for ONNX export the FP32 module and compress the graph"
    with pytest.raises(ModelError, match=told):
        torch.jit.trace(small, (IDS,))  # type: ignore[no-untyped-call]
    with pytest.raises(ModelError, match=told):
        torch.onnx.export(small, (IDS,), "never.onnx", dynamo=False)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with pytest.raises(ModelError, match=told):
        torch.export.export(small, (IDS,), strict=False)


@pytest.mark.parametrize("small", ["int8-weight-only", "int4-weight-only"], indirect=True)
def test_weights_alone_are_traced(small: nn.Module) -> None:
    with torch.inference_mode():
        traced = torch.jit.trace(small, (IDS,), check_trace=False)  # type: ignore[no-untyped-call]
        torch.testing.assert_close(traced(IDS), small(IDS))


def test_weights_alone_become_a_graph(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    small = compress(nn.Sequential(nn.Embedding(20, 64), nn.Linear(64, 64)), "int8-weight-only")
    path = tmp_path / "graph.onnx"
    torch.onnx.export(small, (IDS,), str(path), dynamo=False)
    session = onnxruntime.InferenceSession(path)
    found = session.run(None, {session.get_inputs()[0].name: IDS.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), small(IDS))


def test_four_bits_that_become_no_graph_say_what_can() -> None:
    """Torch's error was a graph of hundreds of lines."""
    small = compress(nn.Linear(64, 64), "int4-weight-only")
    with pytest.raises(ModelError, match="record linear layers in four bits; for ONNX export the"):
        torch.onnx.export(small, (torch.randn(1, 64),), "never.onnx", dynamo=False)


def test_a_layer_in_fp32_is_pickled_without_its_weight_norm() -> None:
    """Folding left a hook, which is a local function, on layers that keep FP32."""
    kept = nn.utils.parametrizations.weight_norm(nn.Conv1d(64, 4, 3))
    net = nn.Sequential(nn.Conv1d(64, 64, 3), kept).eval()
    small: Any = compress(net, "int8")
    x = torch.randn(1, 64, 9)
    with torch.inference_mode():
        assert torch.equal(_unpickled(small)(x), small(x))
    assert type(small[1]) is nn.Conv1d
    weights = net.state_dict()
    assert "1.parametrizations.weight.original0" in weights
    net.load_state_dict(weights)


def test_gradients_before_a_convolution_are_no_warning() -> None:
    """Torch warned of a tensor that requires gradients and becomes a number."""
    small = compress(nn.Conv1d(64, 64, 3).eval(), "int8")
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else once in a process
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            small(torch.randn(1, 64, 9, requires_grad=True))
    finally:
        torch.set_warn_always(always)
    assert not [warning for warning in caught if "requires_grad" in str(warning.message)]


@pytest.mark.slow
@pytest.mark.parametrize("small", ["int8"], indirect=True)
def test_it_compiles_into_machine_code(small: nn.Module) -> None:
    with torch.inference_mode():
        torch.testing.assert_close(torch.compile(small, fullgraph=True)(IDS), small(IDS))
