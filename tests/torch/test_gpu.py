"""Modules on a GPU: which layers multiply in eight bits, what they compute, and what is refused.

No GPU is needed: modules on the CPU pretend to lie on one, and the layers run there, too.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.measures import snr_db
from tts_compress import compress, find_recipe
from tts_compress.errors import ArtifactError, QuantizationError, TTSCompressWarning
from tts_compress.numerics.weights import round_weight
from tts_compress.progress import Silent
from tts_compress.recipes.formats import Activations, Algorithm, Weights
from tts_compress.recipes.recipe import Calibration, Recipe, Rule
from tts_compress.torch import convert as conversion
from tts_compress.torch.convert import convert, runs_on_gpu
from tts_compress.torch.layers.base import layer_state
from tts_compress.torch.layers.checkpoint import restore_root, write_root
from tts_compress.torch.layers.geometry import Geometry
from tts_compress.torch.layers.gpu import GpuFloat8Linear, GpuInt8Linear, GpuLinear
from tts_compress.torch.layers.integer import Int8Linear

_KEPT = "ignore:.*keep FP32 on a GPU:tts_compress.errors.TTSCompressWarning"
X = torch.randn(3, 40, 64, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Linear layers, one whose outputs are no multiple of 8, and a convolution between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 96)
        self.conv = nn.Conv1d(96, 96, 3, padding=1)
        self.norm = nn.LayerNorm(96)
        self.attention = nn.MultiheadAttention(96, 4, batch_first=True)
        self.last = nn.Linear(96, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[batch, time, 10]`."""
        x = torch.relu(self.conv(self.first(x).transpose(1, 2))).transpose(1, 2)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        found: torch.Tensor = self.last(x)
        return found


@pytest.fixture
def net() -> Net:
    """Return a seeded network."""
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every module seem to lie on a GPU of the Hopper generation."""
    _lie_on(monkeypatch, "cuda:0", capability=(9, 0))


def _lie_on(
    monkeypatch: pytest.MonkeyPatch, *devices: str, capability: tuple[int, int] = (9, 0)
) -> None:
    monkeypatch.setattr(conversion, "_devices", lambda _: {torch.device(name) for name in devices})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)


def _gpu_names(module: nn.Module) -> set[str]:
    return {name for name, part in module.named_modules() if isinstance(part, GpuLinear)}


def _rules(*rules: Rule, calibration: Calibration | None = None) -> Recipe:
    recipe = find_recipe("module", "int8")
    return recipe.model_copy(update={"component": rules, "calibration": calibration})


_INNER = {"first", "attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.out_proj"}


@pytest.mark.parametrize("scheme", ["int8", "int8-dynamic"])
def test_linear_layers_are_handed_over_and_the_rest_is_told(
    net: Net, on_gpu: None, scheme: str
) -> None:
    del on_gpu
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    told = "2 layers keep FP32 on a GPU, such as 'conv': there is no Conv1d in integers on a GPU"
    with torch.inference_mode():
        expected = net(X)
        share = "40% of the weights stay in FP32; 'conv'"
        with (
            pytest.warns(TTSCompressWarning, match=share),
            pytest.warns(TTSCompressWarning, match=told),
        ):
            small: Any = compress(net, scheme)
        found = small(X)
        assert torch.equal(net(X), expected), "the original changed"
    assert _gpu_names(small) == _INNER
    assert all(small.get_submodule(n).activations == "dynamic" for n in _INNER)
    assert small.conv.weight.data_ptr() == net.conv.weight.data_ptr()
    assert small.last.weight.data_ptr() == net.last.weight.data_ptr()
    assert isinstance(net.first, nn.Linear)
    assert 30 < snr_db(expected, found) < 60
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


@pytest.mark.filterwarnings(_KEPT)
def test_codes_are_those_of_a_cpu_and_a_cpu_reads_them(
    net: Net, on_gpu: None, tmp_path: Path
) -> None:
    del on_gpu
    done = convert(net, find_recipe("module", "int8"), None, progress=Silent())
    codes, scales = round_weight(net.first.weight.detach(), 0, multiplied=True)
    state = done.root.get_submodule("first").state()  # type: ignore[operator]
    assert torch.equal(state["weight"], codes)
    assert torch.equal(state["weight_scale"], scales)
    assert torch.equal(state["bias"], net.first.bias)
    write_root(done.root, tmp_path / "w", done.layers)
    restored: Any = restore_root(Net().eval(), done.layers, tmp_path / "w")
    assert isinstance(restored.first, Int8Linear)
    with torch.inference_mode():
        assert snr_db(done.root(X), restored(X)) > 30


@pytest.mark.filterwarnings(_KEPT)
def test_what_is_only_stored_small_is_as_on_a_cpu(net: Net, on_gpu: None) -> None:
    del on_gpu
    whole = Rule(match="conv", weights=Weights.BFLOAT16, activations=Activations.BFLOAT16)
    eight = Rule(
        match="*", operators=("Linear",), weights=Weights.INT8, activations=Activations.DYNAMIC
    )
    done = convert(net, _rules(whole, eight), None, progress=Silent())
    assert done.counts == {
        "Conv1d bfloat16/bfloat16": 1,
        "Linear float32/none": 1,
        "Linear int8/dynamic": 5,
    }
    assert {r.module: r.weights for r in done.layers} == {
        "first": "int8",
        "conv": "bfloat16",
        **dict.fromkeys(_INNER - {"first"}, "int8"),
        "last": "float32",
    }
    # A rule that objects leaves a layer to the next one, which only stores it in FP16.
    narrow = eight.model_copy(update={"min_channels": 64})
    done = convert(
        net, _rules(narrow, Rule(match="*", weights=Weights.FLOAT16)), None, progress=Silent()
    )
    last: Any = done.root.get_submodule("last")
    assert torch.equal(last.weight, net.last.weight.half().float())
    assert {r.module: r.weights for r in done.layers}["conv"] == "float16"
    assert _gpu_names(done.root) == _INNER


@pytest.mark.parametrize("scheme", ["fp16", "bf16", "int8-weight-only", "int4-weight-only"])
def test_other_schemes_are_the_same_everywhere(net: Net, on_gpu: None, scheme: str) -> None:
    del on_gpu
    assert not runs_on_gpu(net, find_recipe("module", scheme))


def test_codes_that_calibration_chose_are_used(on_gpu: None) -> None:
    del on_gpu
    torch.manual_seed(0)
    layer = nn.Linear(64, 32)
    rule = Rule(
        match="*", weights=Weights.INT8, activations=Activations.DYNAMIC, algorithm=Algorithm.GPTQ
    )
    recipe = _rules(rule, calibration=Calibration())
    mixed = X @ torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    small: Any = compress(layer, "int8", recipe=recipe, calibration=[mixed])
    rounded = round_weight(layer.weight.detach(), 0, multiplied=True)[0]
    assert 0 < (small.state()["weight"] != rounded).float().mean() < 0.5


@pytest.mark.parametrize("shape", [(64,), (1, 64), (0, 64), (2, 1, 64), (5, 9, 64)])
def test_products_have_rows_enough_for_a_gpu(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = nn.Linear(64, 24)
    codes, scales = round_weight(layer.weight.detach(), 0, multiplied=True)
    state = {"weight": codes, "weight_scale": scales, "bias": layer.bias.detach()}
    small = GpuInt8Linear(Geometry.of(layer), state)
    rows: list[int] = []
    multiply = torch._int_mm

    def counted(codes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows.append(codes.shape[0])
        return multiply(codes, weight)

    monkeypatch.setattr(torch, "_int_mm", counted)
    x = torch.randn(shape)
    with torch.inference_mode():
        found, expected = small(x), layer(x)
    assert found.shape == expected.shape
    assert rows[0] > 16
    assert not x.numel() or snr_db(expected, found) > 35


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
@pytest.mark.parametrize("bias", [True, False])
def test_layers_compute_as_torchaos(
    monkeypatch: pytest.MonkeyPatch, scheme: str, bias: bool
) -> None:
    """Torchao's layers, with the same codes."""
    torchao = pytest.importorskip("torchao.quantization")
    monkeypatch.setattr(torchao.quant_api, "_check_hardware_support", lambda _: None)
    _lie_on(monkeypatch, "cuda:0")
    layer = nn.Linear(64, 48, bias=bias)
    small: Any = compress(layer, scheme)
    if scheme == "int8":
        config = torchao.Int8DynamicActivationInt8WeightConfig(version=2, set_inductor_config=False)
    else:
        layer.bfloat16()  # the only type that scales per row go with
        config = torchao.Float8DynamicActivationFloat8WeightConfig(
            granularity=torchao.PerRow(), set_inductor_config=False
        )
    torchao.quantize_(layer, config)
    oracle: Any = layer.weight
    with torch.inference_mode():
        oracle.qdata.copy_(small.codes)
        oracle.scale.copy_(small.scales.view(oracle.scale.shape))
        expected = layer(X.to(oracle.dtype)).float()
        # torchao's largest code is 127.5, and it rounds inputs to bfloat16 before 8-bit floats.
        assert snr_db(expected, small(X)) > (40 if scheme == "int8" else 35)


def test_a_layer_states_the_device_of_its_weight() -> None:
    """Upstream code makes room for a state where the weight lies."""
    layer = nn.Linear(64, 24, bias=False)
    codes, scales = round_weight(layer.weight.detach(), 0, multiplied=True)
    small = GpuInt8Linear(Geometry.of(layer), {"weight": codes, "weight_scale": scales})
    assert small.weight.device.type == "cpu"
    small.to("meta")
    assert small.weight.device.type == "meta"


def test_a_layer_is_one_graph_for_a_compiler() -> None:
    layer = nn.Linear(64, 24)
    codes, scales = round_weight(layer.weight.detach(), 0, multiplied=True)
    small = GpuInt8Linear(Geometry.of(layer), {"weight": codes, "weight_scale": scales})
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(small, backend=keep, fullgraph=True)
    with torch.inference_mode():
        assert torch.equal(compiled(X), small(X))
    assert len(graphs) == 1


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("capability", "scales"), [((8, 9), 1), ((9, 0), 96), ((12, 0), 1)])
def test_8_bit_floats(
    net: Net, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], scales: int
) -> None:
    _lie_on(monkeypatch, "cuda:0", capability=capability)
    small: Any = compress(net, "fp8")
    assert _gpu_names(small) == _INNER  # 10 outputs are no multiple of 16
    assert small.first.scales.numel() == scales
    assert small.first.codes.dtype == torch.float8_e4m3fn
    assert small.first.weight.dtype == torch.float32, "T5 converts what goes in to it"
    with torch.inference_mode():
        expected, found = net(X), small(X)
    assert found.dtype == torch.float32
    assert 20 < snr_db(expected, found) < 40


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("by_row", [True, False])
def test_rows_of_zeros_stay_finite_in_8_bit_floats(
    by_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = nn.Linear(32, 16)
    with torch.no_grad():
        layer.weight[3] = 0
        layer.bias.fill_(1.0)
    _lie_on(monkeypatch, "cuda:0", capability=(9, 0) if by_row else (8, 9))
    state = layer_state(layer, "float8", "float8", device="cuda")
    small = GpuFloat8Linear(Geometry.of(layer), state)
    x = torch.randn(40, 32)
    x[7] = 0
    with torch.inference_mode():
        found = small(x)
        assert torch.equal(small(torch.zeros(2, 32)), torch.ones(2, 16))
    assert torch.equal(found[:, 3], torch.ones(40))
    assert torch.equal(found[7], torch.ones(16))
    assert snr_db(layer(x).detach(), found) > 20


@pytest.mark.usefixtures("on_gpu")
def test_8_bit_floats_are_not_saved(net: Net, tmp_path: Path) -> None:
    done = convert(net, find_recipe("module", "fp8"), None, progress=Silent())
    assert done.counts["Linear float8/float8"] == 5
    with pytest.raises(ArtifactError, match=r"cannot be saved; .* or take 'int8'"):
        write_root(done.root, tmp_path / "w", done.layers)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("scheme", "devices", "capability", "message"),
    [
        ("fp8", ("cpu",), (9, 0), "capability 8.9 .* lies on cpu: move it .* take 'int8'"),
        ("fp8", ("cpu", "cuda:0"), (9, 0), "lies on cpu"),
        ("fp8", ("meta",), (9, 0), "lies on meta"),
        ("fp8", ("cuda:1",), (8, 6), r"8\.9 .*; cuda:1 has 8\.6: take 'int8' or 'fp16'"),
        ("int8", ("cpu", "cuda:0"), (9, 0), "lies on cpu, cuda:0; move all of it"),
        ("int8-static", ("cuda:0",), (9, 0), "'int8-static' .* on a GPU take 'int8-dynamic'"),
    ],
)
def test_what_there_is_no_arithmetic_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    devices: tuple[str, ...],
    capability: tuple[int, int],
    message: str,
) -> None:
    _lie_on(monkeypatch, *devices, capability=capability)
    calibration = [X] if scheme == "int8-static" else None
    with pytest.raises(QuantizationError, match=message):
        compress(nn.Linear(64, 64), scheme, calibration=calibration)


def test_8_bit_floats_on_this_cpu_and_on_rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(QuantizationError, match=r"'fp8'.* lies on cpu"):
        compress(nn.Linear(64, 64), "fp8")
    _lie_on(monkeypatch, "cuda:0")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(QuantizationError, match="ROCm; take 'bf16'"):
        compress(nn.Linear(64, 64), "fp8")


@pytest.mark.usefixtures("on_gpu")
def test_what_would_change_nothing_is_refused_with_reasons() -> None:
    parts = {"conv": nn.Conv1d(16, 16, 3), "odd": nn.Linear(12, 8)}
    with pytest.raises(QuantizationError) as caught:
        compress(nn.ModuleDict(parts), "int8")
    assert str(caught.value).splitlines() == [
        "the recipe would change nothing in this module:",
        "- 'conv' (Conv1d): there is no Conv1d in integers on a GPU",
        "- 'odd' (Linear): its 12 inputs and 8 outputs are not both multiples of 8",
    ]
