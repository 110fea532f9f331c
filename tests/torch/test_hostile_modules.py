"""Modules, calibrations and files of tensors that were accepted once and gave wrong results."""

import copy
import json
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tts_compress import compress, load_module, save_module
from tts_compress.errors import (
    ArtifactError,
    ModelError,
    QuantizationError,
    RecipeError,
    TTSCompressWarning,
)
from tts_compress.models.files import read_pickled, read_tensors

pytest.importorskip("safetensors")


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_are_not_lost_without_a_word(kind: str) -> None:
    """The compressed layer ignored them, and was half wrong."""
    net = _net()
    hook = getattr(net[2], kind)(lambda *_: None)
    with pytest.raises(QuantizationError, match="'2' has forward hooks"):
        compress(net, "int8-dynamic")
    hook.remove()
    compress(net, "int8-dynamic")


@pytest.mark.parametrize("scheme", ["bf16", "fp16", "int8-dynamic", "int8-weight-only"])
@pytest.mark.parametrize("name", ["0.weight", "0.bias"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_not_finite_is_refused_by_every_scheme(
    scheme: str, name: str, value: float
) -> None:
    net = _net()
    with torch.no_grad():
        net.get_parameter(name).view(-1)[0] = value
    with pytest.raises(QuantizationError, match=f"'{name}': a weight or bias is not finite"):
        compress(net, scheme)


@pytest.mark.parametrize(
    ("calibration", "problem"),
    [
        (["a"], "holds no tensors, but 'a'"),
        ([None], "holds no tensors"),
        ([[]], "holds no tensors"),
        ([torch.zeros(2, 64)], "all zeros"),
        ([torch.ones(3)], "cannot be called with batch 0 .* a Tensor: mat1"),
        ([{"x": torch.ones(2, 64)}], "cannot be called with batch 0 .* unexpected keyword"),
    ],
    ids=str,
)
def test_a_calibration_that_shows_nothing_is_one_line(calibration: Any, problem: str) -> None:
    """All zeros gave integers with 90 % error; the others were tracebacks."""
    with pytest.raises(RecipeError, match=problem) as caught:
        compress(_net(), "int8-static", calibration=calibration)
    assert "\n" not in str(caught.value)


def test_a_compiled_module_is_refused() -> None:
    with pytest.raises(QuantizationError, match=r"was compiled by torch\.jit"):
        compress(torch.jit.script(_net()), "int8-dynamic")


def _no_bias(header: dict[str, Any]) -> None:
    del header["2.bias"]


def _stated(header: dict[str, Any], **values: Any) -> None:
    header["2.bias"] |= values


_LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "missing": _no_bias,
    "nested": lambda header: _stated(header, dtype=json.loads("[" * 90 + "]" * 90)),
    "infinite": lambda header: _stated(header, data_offsets=[0, float("inf")]),
    "shape": lambda header: _stated(header, shape=[float("inf")]),
    "dimensions": lambda header: _stated(header, shape=[1 << 62, 1 << 62]),
    "overlap": lambda header: _stated(header, data_offsets=[0, 256]),
    "type": lambda header: _stated(header, dtype="F7"),
    "metadata": lambda header: header.update(__metadata__={"a": {}}),
    "text": lambda header: header.update({"2.bias": "text"}),
}


@pytest.mark.parametrize("lie", [*_LIES, "trailing", "deep", "long"])
def test_a_header_accounts_for_every_byte(tmp_path: Path, lie: str) -> None:
    """Some were tracebacks, some were accepted, and one took its bias from another model."""
    path = save_module(compress(_net(), "int8-weight-only"), tmp_path / "net.safetensors")
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header, tensors = json.loads(content[8 : 8 + length]), content[8 + length :]
    if lie in _LIES:
        _LIES[lie](header)
    text = json.dumps(header).encode()
    if lie == "deep":
        text = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
    stated = 1 << 62 if lie == "long" else len(text)
    tail = b"more" if lie == "trailing" else b""
    path.write_bytes(struct.pack("<Q", stated) + text + tensors + tail)
    with pytest.raises(ArtifactError, match=r"net\.safetensors'") as caught:
        load_module(_net(), path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match=r"net\.safetensors' is no checkpoint"):
        read_tensors(path)


def test_a_bias_that_was_left_out_is_missed(tmp_path: Path) -> None:
    """The file is a valid one of another module; the layer lost its bias without a word."""
    bare = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64, bias=False)).eval()
    path = save_module(compress(bare, "int8-weight-only"), tmp_path / "net.safetensors")
    with pytest.raises(ArtifactError, match="lacks the bias of layer '2'"):
        load_module(_net(), path)


def test_a_tensor_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"a": torch.ones(1).expand(1 << 20, 1 << 20)}, path)
    with pytest.raises(ValueError, match="is larger than the file"):
        read_pickled(path)


def test_nobody_is_told_to_read_unsafely(tmp_path: Path) -> None:
    """Torch's message advises `weights_only=False`."""
    path = tmp_path / "weights.pt"
    torch.save({"a": nn.Linear(1, 1)}, path)
    with pytest.raises(ModelError, match="Unsupported") as caught:
        read_tensors(path)
    assert "weights_only" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:this processor:tts_compress.errors.TTSCompressWarning")
@pytest.mark.parametrize("scheme", ["int8", "int8-weight-only", "int4-weight-only", "fp16", "bf16"])
def test_complex_weights_keep_their_imaginary_part(scheme: str) -> None:
    """They lost it without a word: half of the output was wrong."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64, dtype=torch.complex64))
    with pytest.raises(QuantizationError, match=r"'0' \(Linear\): its weights are complex64"):
        compress(net, scheme)
    both = nn.ModuleList([net[0], nn.Linear(64, 64)])
    with pytest.warns(TTSCompressWarning, match="its weights are complex64"):
        small = compress(both, scheme)
    x = torch.randn(3, 64, dtype=torch.complex64)
    assert torch.equal(small.get_submodule("0")(x), net(x))


class _Typed(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 64, dtype=dtype)
        self.norm = nn.LayerNorm(64, dtype=dtype)
        self.conv = nn.Conv1d(64, 64, 3, padding=1, dtype=dtype)
        self.rnn = nn.GRU(64, 64, batch_first=True, dtype=dtype)
        self.last = nn.Linear(64, 64, dtype=dtype)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.table(ids))
        return torch.as_tensor(self.last(self.rnn(self.conv(x.mT).mT)[0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scheme", ["int8", "int8-weight-only", "int4-weight-only"])
def test_modules_of_other_types_keep_them(scheme: str, dtype: torch.dtype) -> None:
    """A table returned FP32, which the norm behind it refused."""
    torch.manual_seed(0)
    net = _Typed(torch.float32).eval()
    ids = torch.arange(12).view(2, 6)
    small = compress(net.to(dtype), scheme)
    with torch.inference_mode():
        found = small(ids)
        expected = net.float()(ids)
    assert found.dtype == dtype
    error = (expected - found.float()).square().mean()
    assert 10 * torch.log10(expected.square().mean() / error) > 14


def test_a_table_that_changes_when_it_is_read_stays_as_it_is() -> None:
    net = nn.Sequential(nn.Embedding(30, 64, max_norm=1.0), nn.Linear(64, 64))
    with pytest.warns(TTSCompressWarning, match=r"shortens its rows .* \(max_norm\)"):
        small = compress(net, "int8-weight-only")
    assert isinstance(small.get_submodule("0"), nn.Embedding)


class _Transposing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv1d(64, 64, 3, padding=1), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.last(self.conv(x).transpose(1, 2)))


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_four_bits_take_rows_in_any_layout(batch: int) -> None:
    """A convolution, transposed, before a linear layer: batches of one failed at the first call."""
    torch.manual_seed(0)
    net = _Transposing().eval()
    small = compress(net, "int4-weight-only")
    x = torch.randn(2, 64, 9)[:batch]
    with torch.inference_mode():
        expected, found = net(x), small(x)
        assert small.get_submodule("last")(torch.randn(64, 5).t()).shape == (5, 64)
    assert found.shape == expected.shape
    if batch:
        error = (expected - found).square().mean()
        assert 10 * torch.log10(expected.square().mean() / error) > 12


def test_threads_that_begin_together_agree() -> None:
    """Each brought the four-bit codes into the kernel's layout, one those of another."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]).eval()
    small = compress(net, "int4-weight-only")
    x = torch.randn(3, 512)
    expected = copy.deepcopy(small)(x)
    together = threading.Barrier(6)

    def call(_: int) -> torch.Tensor:
        together.wait()
        return torch.as_tensor(small(x))

    with ThreadPoolExecutor(6) as pool:
        assert all(torch.equal(found, expected) for found in pool.map(call, range(6)))
    assert torch.equal(small(x), expected)


def test_records_that_are_nested_deeply_are_refused(tmp_path: Path) -> None:
    import safetensors.torch

    path = tmp_path / "deep.safetensors"
    metadata = {"tts_compress.layers": "[" * 100_000}
    safetensors.torch.save_file({"a": torch.zeros(1)}, path, metadata=metadata)
    with pytest.raises(ArtifactError, match="was not written by save_module"):
        load_module(_net(), path)
