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
from torch.nn.utils.parametrizations import spectral_norm

from tests.measures import snr_db
from tts_compress import (
    compress,
    evaluate,
    load_module,
    manifest_of,
    prepare_qat,
    save_module,
)
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
@pytest.mark.parametrize(("name", "value"), [("0.weight", float("nan")), ("0.bias", float("inf"))])
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


def _stated(header: dict[str, Any], **values: Any) -> None:
    header["2.bias"] |= values


_LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "missing": lambda header: header.pop("2.bias"),
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
@pytest.mark.parametrize("scheme", ["int8", "bf16"])
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
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
    assert snr_db(expected, found.float()) > 14


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
        assert snr_db(expected, found) > 12


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


def test_weights_that_are_computed_at_each_access_are_not_shared() -> None:
    """One was freed, and the next got its id: layers were taken for tied ones."""
    net = nn.Sequential(*[spectral_norm(nn.Linear(64, 64)) for _ in range(5)]).eval()
    layers = manifest_of(compress(net, "int4-weight-only")).layers
    assert [layer.weights for layer in layers] == ["int4"] * 5


def test_packed_weights_are_not_said_to_be_loaded() -> None:
    """All keys matched, of none, and the other module's weights stayed."""
    first, second = (compress(nn.Sequential(nn.Linear(64, 64)).eval(), "int8") for _ in range(2))
    with pytest.raises(RuntimeError, match=r"'0.' is packed for kernels: use save_module"):
        second.load_state_dict(first.state_dict())


def test_a_computed_weight_is_not_said_to_be_stored_in_another_type() -> None:
    """A small layer is stored in FP16, and its file holds what the weight is computed from."""
    net = nn.Sequential(nn.Linear(256, 256), spectral_norm(nn.Linear(256, 16))).eval()
    layers = manifest_of(compress(net, "int8-weight-only")).layers
    assert [layer.weights for layer in layers[:2]] == ["int8", "float32"]
    assert "computed from others" in layers[1].reason


def test_a_layer_names_the_one_with_whose_weight_it_gets_another_format() -> None:
    net = nn.Sequential(nn.Embedding(64, 64), nn.Linear(64, 64, bias=False)).eval()
    net[1].weight = net[0].weight
    layers = manifest_of(compress(net, "int4-weight-only")).layers
    assert [(layer.weights, layer.reason) for layer in layers] == [
        ("int8", ""),
        ("int8", "it shares its weight with '0'"),
    ]


class _ByName(nn.Module):
    """Calls layers as authors of Tacotron-like models do."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(30, 64), nn.Linear(64, 64)
        self.conv = nn.Conv1d(64, 64, 3, padding=1)
        self.rnn = nn.LSTM(64, 64, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.linear(input=self.table(input=ids))
        x = self.conv(input=x.mT).mT
        self.rnn.flatten_parameters()
        return torch.as_tensor(self.rnn(input=x)[0])


@pytest.mark.filterwarnings("ignore:this processor:tts_compress.errors.TTSCompressWarning")
@pytest.mark.filterwarnings("ignore:.* stay in FP32:tts_compress.errors.TTSCompressWarning")
@pytest.mark.parametrize(
    "scheme", ["int8-dynamic", "int8-static", "int8-weight-only", "int4-weight-only", "bf16"]
)
def test_layers_are_called_as_torchs_are(scheme: str) -> None:
    """By the name `input`, in calibration too, and asked to lay out their weights."""
    torch.manual_seed(0)
    net, ids = _ByName().eval(), torch.arange(12).view(2, 6)
    small = compress(net, scheme, calibration=[ids] if scheme == "int8-static" else None)
    with torch.inference_mode():
        expected, found = net(ids), small(ids)
    assert (expected - found).norm() / expected.norm() < 0.2
    if scheme == "int8-static":
        student = prepare_qat(net, "int8-qat")
        with student.observing():
            student.module(ids)


class _Stream(nn.Module):
    """Keeps the end of its input for the next call, and all that it has heard."""

    past: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(64, 64, 3), nn.LayerNorm(64)
        self.register_buffer("past", torch.zeros(1, 64, 2))
        self.heard: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat((self.past, x), -1)
        self.past.copy_(joined[..., -2:])
        self.heard.append(x)
        return torch.as_tensor(self.norm(self.conv(joined).mT))


@pytest.mark.parametrize("scheme", ["int8-dynamic", "int8-static", "int8-weight-only"])
def test_what_a_module_keeps_between_calls_is_its_own(scheme: str) -> None:
    """Calibration left its last samples in the original and in the result, which shared them."""
    torch.manual_seed(0)
    net, x = _Stream().eval(), torch.randn(1, 64, 9)
    fresh = copy.deepcopy(net)
    small: Any = compress(net, scheme, calibration=[x] if scheme == "int8-static" else None)
    for module in (net, small):
        assert not module.past.any()
        assert not module.heard
    evaluate(net, small, batches=[x])
    with torch.inference_mode():
        expected, found = [fresh(x), fresh(x)], [small(x), small(x)]
    for one, other in zip(expected, found, strict=True):
        assert (one - other).norm() / one.norm() < 0.1
    assert not net.past.any()


@pytest.mark.parametrize("step", ["half", "double", "requires_grad_"])
def test_a_step_of_the_result_leaves_the_original(step: str) -> None:
    """`half` changes parameters in place, and both had the same."""
    net = _Stream().eval()
    small = compress(net, "int8-weight-only")
    assert small.get_parameter("norm.weight").data_ptr() == net.norm.weight.data_ptr()
    getattr(small, step)(*([False] if step == "requires_grad_" else []))
    assert net.norm.weight.dtype == torch.float32
    assert net.norm.weight.requires_grad


def test_what_is_compressed_in_inference_mode_is_of_use_outside() -> None:
    """Its buffers could not be written to, and a gradient could not pass its weights."""
    with torch.inference_mode():
        small = compress(_Stream().eval(), "int8-weight-only")
    x = torch.randn(1, 64, 9, requires_grad=True)
    small(x.detach())
    nn.Sequential(*list(small.children())[:1])(x).sum().backward()
    assert x.grad is not None


@pytest.mark.filterwarnings("ignore:this processor:tts_compress.errors.TTSCompressWarning")
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_weights_that_a_type_cannot_hold_are_refused(name: str) -> None:
    """They became infinite without a word."""
    net = nn.Sequential(nn.Linear(64, 64, dtype=torch.float64))
    with torch.no_grad():
        net[0].get_parameter(name).view(-1)[0] = 7e4
    compress(net, "bf16")
    with pytest.raises(QuantizationError, match=r"'0': a weight of 70000 is too large .*float16"):
        compress(net, "fp16")
    with torch.no_grad():
        net[0].get_parameter(name).view(-1)[0] = 1e300
    with pytest.raises(QuantizationError, match=r"'0': a weight of 1e\+300 is too large .*float32"):
        compress(net, "int8-dynamic")


class _Counting(nn.Identity):
    def get_extra_state(self) -> int:
        return 3


def test_a_state_that_a_file_would_lose_is_refused(tmp_path: Path) -> None:
    small = compress(nn.Sequential(nn.Linear(64, 64), _Counting()), "int8-dynamic")
    with pytest.raises(ModelError, match=r"'1' \(_Counting\) has a state besides its tensors"):
        save_module(small, tmp_path / "net.safetensors")


@pytest.mark.parametrize("use", [lambda net: compress(net, "int8-dynamic"), prepare_qat])
def test_modules_that_cannot_be_copied_or_have_no_shape_are_one_line(use: Any) -> None:
    net: Any = _net()
    net.kept = [net[0].weight * 2]
    with pytest.raises(QuantizationError, match="the module cannot be copied"):
        use(net)
    net.kept = threading.Lock()
    with pytest.raises(QuantizationError, match="the module cannot be copied"):
        use(net)
    with pytest.raises(QuantizationError, match=r"'0\.weight' has no shape yet"):
        use(nn.Sequential(nn.LazyLinear(64)))


class _InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.last(self.first(x.mul_(2))))


@pytest.mark.parametrize("scheme", ["int8-static", "int4-gptq"])
def test_batches_stay_as_they_are(scheme: str) -> None:
    """Calibration changed them with the module, and those with gradients could not be judged."""
    torch.manual_seed(0)
    net, batch = _InPlace().eval(), torch.randn(9, 64)
    before = batch.clone()
    small = compress(net, scheme, calibration=[batch])
    assert torch.equal(batch, before)
    result = evaluate(net, small, batches=[batch.requires_grad_() * 1])
    assert torch.equal(batch, before)
    assert result.outputs[0].relative_error < 0.3


class _Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(30, 64), nn.LayerNorm(64)
        self.conv, self.up = nn.Conv1d(64, 64, 3, padding=1), nn.ConvTranspose1d(64, 64, 4, 2, 1)
        self.rnn, self.last = nn.LSTM(64, 64, batch_first=True), nn.Linear(64, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.up(self.conv(self.norm(self.table(ids)).mT)).mT
        return torch.as_tensor(self.last(self.rnn(x)[0]))


@pytest.mark.filterwarnings("ignore:this processor:tts_compress.errors.TTSCompressWarning")
@pytest.mark.filterwarnings("ignore:.* stay in FP32:tts_compress.errors.TTSCompressWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scheme", ["int8", "int8-weight-only", "int4-weight-only", "bf16"])
def test_a_result_is_cast_like_its_original(scheme: str, dtype: torch.dtype) -> None:
    """Biases and scales took the new type, which kernels refused, and tables kept theirs."""
    torch.manual_seed(0)
    net, ids = _Mixed().eval(), torch.arange(12).view(2, 6)
    small = compress(net, scheme)
    with torch.inference_mode():
        expected = net(ids)
        small(ids)  # in four bits some codes are in the kernel's layout now
        found = small.to(dtype)(ids)
    assert found.dtype == dtype
    assert (expected - found.float()).norm() / expected.norm() < 0.2


def test_records_that_are_nested_deeply_are_refused(tmp_path: Path) -> None:
    import safetensors.torch

    path = tmp_path / "deep.safetensors"
    metadata = {"tts_compress.layers": "[" * 100_000}
    safetensors.torch.save_file({"a": torch.zeros(1)}, path, metadata=metadata)
    with pytest.raises(ArtifactError, match="was not written by save_module"):
        load_module(_net(), path)
