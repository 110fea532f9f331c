"""Modules, calibrations and files of tensors that were accepted once and gave wrong results."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tts_compress import compress, load_module, save_module
from tts_compress.errors import ArtifactError, ModelError, QuantizationError, RecipeError
from tts_compress.models.files import read_pickled, read_tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
