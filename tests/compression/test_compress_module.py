"""`compress` on any torch module: what changes, what stays, and what is refused."""

import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.measures import snr_db
from tts_compress import compress, environment, find_recipe, load_module, manifest_of, save_module
from tts_compress.artifact import Manifest
from tts_compress.errors import (
    ModelError,
    QuantizationError,
    RecipeError,
    SchemeError,
    TTSCompressWarning,
)
from tts_compress.recipes.recipe import schemes_of
from tts_compress.torch.decisions import decide
from tts_compress.torch.layers.base import CompressedLayer
from tts_compress.torch.layers.checkpoint import stored_bytes


class Speech(nn.Module):
    """A small synthesizer with every kind of layer that can be compressed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 64)
        block = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, 2)
        self.cross = nn.MultiheadAttention(64, 4, kdim=64, vdim=64, batch_first=True)
        self.conv = parametrizations.weight_norm(nn.Conv1d(64, 64, 5, padding=2))
        self.up = parametrizations.weight_norm(nn.ConvTranspose1d(64, 32, 8, stride=4, padding=2))
        self.depthwise = nn.Conv1d(32, 32, 7, padding=3, groups=32)
        self.norm = nn.LayerNorm(64)
        self.post = nn.Conv1d(32, 1, 7, padding=3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return audio, `[batch, 1, 4 * symbols]`."""
        x = self.encoder(self.embed(ids))
        x = self.norm(x + self.cross(x, x, x, need_weights=False)[0]).transpose(1, 2)
        return torch.tanh(self.post(self.depthwise(torch.relu(self.up(self.conv(x))))))


IDS = torch.randint(0, 40, (2, 30), generator=torch.Generator().manual_seed(0))
SCHEMES = ("int8", "int8-dynamic", "int8-static", "int8-weight-only", "int4-weight-only")
HALVES = ("fp16", "bf16")
LEAST_SNR = {"int4-weight-only": 12.0, "bf16": 35.0, "fp16": 55.0, "int8-weight-only": 35.0}


@pytest.fixture
def module() -> Speech:
    """Return a seeded network."""
    torch.manual_seed(0)
    return Speech().eval()


def _calibration(scheme: str) -> Any:
    return [IDS, (IDS[:1],), {"ids": IDS[1:]}] if scheme == "int8-static" else None


def _layers(module: nn.Module) -> Counter[str]:
    return Counter(
        f"{m.geometry.operator} {m.weights}/{m.activations}"
        for name, m in module.named_modules()
        if isinstance(m, CompressedLayer) and not name.endswith(".phases")  # a layer's own part
    )


@pytest.mark.filterwarnings("ignore:this processor:tts_compress.errors.TTSCompressWarning")
@pytest.mark.parametrize("scheme", [*SCHEMES, *HALVES])
def test_every_scheme_sounds_nearly_the_same(module: Speech, scheme: str) -> None:
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with torch.inference_mode():
        expected = module(IDS)
        small = compress(module, scheme, calibration=_calibration(scheme))
        found = small(IDS)
        assert found.shape == expected.shape
        assert LEAST_SNR.get(scheme, 25.0) < snr_db(expected, found) < 200
        assert torch.equal(module(IDS), expected), "the original changed"
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


def test_layers_are_counted_as_promised(module: Speech) -> None:
    """Two encoder layers of four projections and two linear layers, and one more attention."""
    small = compress(module, "int8")
    assert isinstance(small, Speech)
    assert not small.training
    assert _layers(small) == {
        "Linear int8/dynamic": 2 * 6 + 4,
        "Conv1d int8/dynamic": 1,  # another has one channel
        "ConvTranspose1d int8/dynamic": 1,
        "Embedding int8/none": 1,
    }
    four = _layers(compress(module, "int4-weight-only"))
    assert four["Linear int4/none"] == 16
    assert four["Embedding int8/none"] == 1
    assert four["Conv1d int4/none"] == 1
    assert four["ConvTranspose1d int4/none"] == 1
    assert four["Conv1d int8/none"] == 2  # 7 and 7 × 32 inputs are no multiples of 64


def test_int8_with_batches_is_int8_static(module: Speech) -> None:
    batches = _calibration("int8-static")
    small = compress(module, "int8", calibration=batches)
    static = compress(module, "int8-static", calibration=batches)
    assert _layers(small) == _layers(static)
    with torch.inference_mode():
        assert torch.equal(small(IDS), static(IDS))


def test_int8_by_a_recipe_of_its_own_stays_what_that_says(module: Speech) -> None:
    recipe = find_recipe("module", "int8").model_copy(update={"summary": "mine"})
    with pytest.raises(SchemeError, match="'int8' needs no calibration set"):
        compress(module, "int8", recipe=recipe, calibration=[IDS])


@pytest.mark.parametrize("scheme", ["INT8_DYNAMIC", "half"])
@pytest.mark.filterwarnings("ignore:this processor:tts_compress.errors.TTSCompressWarning")
def test_other_names_of_schemes_are_understood(scheme: str) -> None:
    net = nn.Linear(64, 64)
    kind = {"INT8_DYNAMIC": "int8/dynamic", "half": "float16/float16"}[scheme]
    assert f"Linear {kind}" in _layers(nn.Sequential(compress(net, scheme)))


def test_an_unknown_scheme_lists_what_a_module_can_have() -> None:
    """It listed `int4-int8`, `int4-qat` and `mixed`, which modules do not have."""
    with pytest.raises(SchemeError) as caught:
        compress(nn.Linear(8, 8), "int8-statik")
    listed, _, suggestion = str(caught.value).partition(": ")[2].partition("; did you mean ")
    assert sorted(listed.split(", ")) == schemes_of("module")
    assert suggestion == "'int8-static'?"


def test_a_recipe_decides_by_name(module: Speech) -> None:
    shipped = find_recipe("module", "int8")
    rule = shipped.component[0].model_copy(update={"match": "encoder.*"})
    recipe = shipped.model_copy(update={"component": (rule,)})
    assert _layers(compress(module, "int8", recipe=recipe)) == {"Linear int8/dynamic": 12}


def test_the_first_rule_that_can_decides() -> None:
    """Layers with no compressed form for a rule are left to the rules behind it, as for graphs."""
    shipped = find_recipe("module", "int8")
    first = shipped.component[0].model_copy(update={"operators": ()})
    rest = first.model_copy(update={"weights": "float16", "activations": "none"})
    recipe = shipped.model_copy(update={"component": (first, rest)})
    net = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.Conv1d(8, 8, 3, groups=8))
    assert [(d.weights, d.activations) for d in decide(net, recipe)] == [
        ("float16", "none"),
        ("int8", "dynamic"),
        ("float16", "none"),
    ]
    kept = first.model_copy(update={"exclude": ("1",)})
    decided = decide(net, shipped.model_copy(update={"component": (kept, rest)}))
    assert decided[1].weights == "float32"


def test_smallest_layers_have_finer_weights_in_int8() -> None:
    """Two layers with one weight count as one."""
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 6))
    net[2].weight = net[0].weight
    small = compress(net, "int8-weight-only")
    assert [str(layer.weights) for layer in manifest_of(small).layers] == ["int8", "int8", "int8"]
    net[3] = nn.Linear(64, 5)
    small = compress(net, "int8-weight-only")
    assert [str(layer.weights) for layer in manifest_of(small).layers] == [
        "int8",
        "int8",
        "float16",
    ]


def test_what_would_change_nothing_is_refused_with_reasons() -> None:
    shipped = find_recipe("module", "int8")
    rule = shipped.component[0].model_copy(update={"exclude": ("head",), "operators": ()})
    recipe = shipped.model_copy(update={"component": (rule,)})
    net = nn.ModuleDict(
        {
            "norm": nn.BatchNorm1d(3),
            "film": nn.Conv3d(3, 3, 1),
            "depthwise": nn.Conv1d(8, 8, 3, groups=8),
            "head": nn.Linear(3, 3),
            "dilated": nn.ConvTranspose1d(8, 8, 3, dilation=2),
        }
    )
    with pytest.raises(QuantizationError) as caught:
        compress(net, "int8", recipe=recipe)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the recipe would change nothing in this module:"
    assert set(lines[1:]) == {
        "- 'norm' (BatchNorm1d): there is no compressed layer of its kind",
        "- 'film' (Conv3d): there is no compressed layer of its kind",
        "- 'depthwise' (Conv1d): a convolution by channels is not faster in integers",
        "- 'head' (Linear): the recipe excludes it",
        "- 'dilated' (ConvTranspose1d): "
        "no integer kernel computes a dilated transposed convolution",
    }
    with pytest.raises(QuantizationError, match="it has no weights"):
        compress(nn.Sequential(nn.ReLU()), "int8")
    many = nn.ModuleList(nn.BatchNorm1d(2) for _ in range(20))
    with pytest.raises(QuantizationError, match="and 8 more"):
        compress(many, "int8")


def test_bad_input_is_a_clear_error() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            return self.used(x)

    layer, batch = nn.Linear(8, 8), torch.ones(1, 8)
    twice, meta = compress(layer, "int8-weight-only"), nn.Linear(8, 8, device="meta")
    needless = "needs no calibration set; leave it out, or .*: .*int8-static"
    attempts: list[tuple[nn.Module, str, Any, type[Exception], str]] = [
        (twice, "int8", None, QuantizationError, "already compressed"),
        (layer, "int8-static", [], RecipeError, "holds no batch"),
        (layer, "int8-static", "en", RecipeError, "calibrated on batches, not on 'en'"),
        (layer, "int8-dynamic", [batch], SchemeError, needless),
        (Half(), "int8-static", [batch], QuantizationError, "never ran 1 layers, such as 'idle'"),
        (layer, "int8-static", [batch * torch.nan], QuantizationError, "not finite"),
        (meta, "int8", None, QuantizationError, "meta device"),
    ]
    for module, scheme, calibration, error, message in attempts:
        with pytest.raises(error, match=message):
            compress(module, scheme, calibration=calibration)


@pytest.mark.parametrize("change", [{"float_residuals": True}, {"format": "qoperator"}])
def test_what_is_a_matter_of_graphs_is_refused(change: dict[str, Any]) -> None:
    recipe = find_recipe("module", "int8-static").model_copy(update=change)
    with pytest.raises(RecipeError, match="a matter of ONNX graphs"):
        compress(nn.Linear(8, 8), "int8-static", recipe=recipe, calibration=[torch.ones(1, 8)])


def test_slow_arithmetic_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_FEATURES", ("avx2",))
    for scheme, kind in (("fp16", "float16"), ("bf16", "bfloat16")):
        with pytest.warns(TTSCompressWarning, match=f"no {kind} arithmetic .* slower than FP32"):
            compress(nn.Linear(8, 8), scheme)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compress(nn.Linear(8, 8), "int8")
        compress(nn.Linear(8, 8), "int8-weight-only")


def _alone(*values: float) -> torch.Tensor:
    """Return rows of 64 inputs, of which the first is not zero."""
    return torch.nn.functional.pad(torch.tensor([values]).t(), (0, 63))


def test_static_ranges_come_from_the_batches() -> None:
    """A value beyond what calibration saw is clipped to its edge."""
    linear = nn.Linear(64, 1, bias=False)
    with torch.no_grad():
        linear.weight.fill_(1.0)
    recipe = find_recipe("module", "int8-static")
    assert recipe.calibration is not None
    settings = recipe.calibration.model_copy(update={"observer": "minmax"})
    recipe = recipe.model_copy(update={"calibration": settings})
    batches = [_alone(0.0, 2.0), _alone(-1.0)]
    small = compress(linear, "int8-static", recipe=recipe, calibration=batches)
    found = small(_alone(-9.0, -1.0, 0.5, 2.0, 9.0)).flatten()
    torch.testing.assert_close(found, torch.tensor([-1.0, -1.0, 0.5, 2.0, 2.0]), atol=0.02, rtol=0)


def test_no_more_batches_are_read_than_are_used() -> None:
    recipe = find_recipe("module", "int8-static")
    assert recipe.calibration is not None
    used, read = recipe.calibration.utterances, list[int]()

    def batches() -> Iterator[torch.Tensor]:
        for number in range(used + 5):
            read.append(number)
            yield torch.ones(1, 64)

    compress(nn.Linear(64, 64), "int8-static", calibration=batches())
    assert len(read) == used


class Tied(nn.Module):
    """A language model whose head shares its table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 64)
        self.inner = nn.Linear(64, 64)
        self.head = nn.Linear(64, 300)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return torch.as_tensor(self.head(torch.relu(self.inner(self.table(ids)))))


PROMPT_IDS = torch.arange(30).view(2, 15)
SAVED_SCHEMES = ["int8", "int8-weight-only", "int4-weight-only", "fp16", "bf16"]


@pytest.mark.filterwarnings("ignore:this processor:tts_compress.errors.TTSCompressWarning")
@pytest.mark.parametrize("scheme", SAVED_SCHEMES)
def test_a_shared_weight_is_stored_once(tmp_path: Path, scheme: str) -> None:
    """A file held it twice, and was larger than the original's in 16 bits."""
    torch.manual_seed(0)
    net = Tied().eval()
    small = compress(net, scheme)
    path = save_module(small, tmp_path / "small.safetensors")
    loaded = load_module(Tied(), path)
    for module in (small, loaded):
        head, table = module.get_submodule("head"), module.get_submodule("table")
        shared = dict(table.named_buffers())
        assert shared
        assert all(value is head.get_buffer(name) for name, value in shared.items())
    share = {"fp16": 0.52, "bf16": 0.52}.get(scheme, 0.30)
    assert stored_bytes(small) == stored_bytes(loaded) < share * stored_bytes(net)
    assert stored_bytes(small) < path.stat().st_size < stored_bytes(small) + 10_000
    with torch.inference_mode():
        expected, found = net(PROMPT_IDS), small(PROMPT_IDS)
        assert torch.equal(loaded(PROMPT_IDS), found)
    assert snr_db(expected, found) > {"int4-weight-only": 15, "fp16": 50}.get(scheme, 30)


def test_a_module_carries_its_record(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Embedding(40, 64), nn.Linear(64, 64), nn.LayerNorm(64))
    small = compress(net, "int8")
    manifest = manifest_of(small)
    assert (manifest.family, manifest.scheme) == ("module", "int8")
    assert manifest.counts == {
        "Embedding int8/none": 1,
        "LayerNorm float32/none": 1,
        "Linear int8/dynamic": 1,
    }
    norm = manifest.layers[-1]
    assert (norm.module, norm.parameters) == ("2", 128)
    assert norm.reason == "there is no compressed layer of its kind"
    assert manifest.source.size_bytes == stored_bytes(net)
    assert manifest.size_bytes == stored_bytes(small)
    assert Manifest.from_json(manifest.to_json()) == manifest
    path = save_module(small, tmp_path / "small.safetensors")
    assert manifest_of(load_module(net, path)) == manifest
    with pytest.raises(ModelError, match="this Linear carries no record"):
        manifest_of(nn.Linear(2, 2))


def test_much_float32_is_told_with_its_reasons() -> None:
    """An LSTM beside a linear layer was left out without a word."""
    net = nn.Sequential(nn.Linear(64, 64), nn.Conv3d(8, 8, 3))
    told = (
        r"^30% of the weights stay in FP32; '1' \(Conv3d, 1,736\): there is no compressed layer "
        r"of its kind; `layers` of the result's manifest has all$"
    )
    with pytest.warns(TTSCompressWarning, match=told) as caught:
        compress(net, "int8-weight-only")
    assert [warning.filename for warning in caught] == [__file__]


def test_float32_that_the_recipe_states_is_expected() -> None:
    shipped = find_recipe("module", "int8")
    rule = shipped.component[0].model_copy(update={"exclude": ("1",)})
    recipe = shipped.model_copy(update={"component": (rule,)})
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    small = compress(net, "int8", recipe=recipe)  # a warning would be an error here
    assert [layer.reason for layer in manifest_of(small).layers] == ["", "the recipe excludes it"]


def test_what_is_not_smaller_is_refused() -> None:
    with pytest.raises(
        QuantizationError, match=r"'int8' would not make this module smaller: 32 → 36 bytes"
    ):
        compress(nn.Linear(1, 4), "int8", recipe=_every_layer())


def _every_layer() -> Any:
    shipped = find_recipe("module", "int8")
    return shipped.model_copy(update={"component": shipped.component[:1]})


def _gpt2(**settings: int) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    words = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings, **words)).eval()


_SMALL = {"n_layer": 2, "n_embd": 128, "n_head": 2, "vocab_size": 500, "n_positions": 64}


@pytest.mark.parametrize("settings", [_SMALL, pytest.param({}, marks=pytest.mark.slow)], ids=len)
def test_gpt2_takes_a_quarter(tmp_path: Path, settings: dict[str, int]) -> None:
    """Its layers, `Conv1D` of transformers, stayed in FP32, and the file got larger."""
    net = _gpt2(**settings)
    small = compress(net, "int8")
    path = save_module(small, tmp_path / "gpt2.safetensors")
    whole = sum(parameter.nbytes for parameter in net.parameters())
    assert path.stat().st_size <= 0.30 * whole
    ids = torch.arange(1, 33).view(1, -1)
    with torch.inference_mode():
        expected, found = net(ids).logits, small(ids).logits
        assert torch.equal(load_module(_gpt2(**settings), path)(ids).logits, found)
    assert snr_db(expected, found) >= 25
    layer = small.get_submodule("transformer.h.0.attn.c_attn")
    width = small.config.n_embd
    assert (layer.nf, layer.nx) == (3 * width, width)
    assert (layer.in_features, layer.out_features) == (width, 3 * width)
