"""Modules that `prepare_qat` changes, leaves alone and refuses."""

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm

import tts_compress
from tts_compress import compress, find_recipe
from tts_compress.errors import QuantizationError, RecipeError
from tts_compress.qat.fake_quantize import (
    DynamicFakeQuantize,
    disable_observer,
    switch_fake_quant,
)
from tts_compress.qat.prepare import FakeQuantizedLayer, prepare_qat
from tts_compress.torch.layers.base import CompressedLayer

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")


class Speech(nn.Module):
    """A small synthesizer with every kind of layer, and weight norm in both forms."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 64)
        self.attention = nn.MultiheadAttention(64, 4, dropout=0.5, batch_first=True)
        self.norm = nn.LayerNorm(64)
        self.conv = weight_norm(nn.Conv1d(64, 64, 5, padding=2, padding_mode="reflect"))
        self.up = parametrizations.weight_norm(nn.ConvTranspose1d(64, 32, 8, 4, padding=2))
        self.post = nn.Sequential(nn.Conv1d(32, 8, 7, padding=3), nn.ReLU(), nn.Conv1d(8, 1, 1))
        self.hop = 4

    def forward(self, ids: Tensor) -> Tensor:
        """Return audio, `[batch, 1, 4 * symbols]`."""
        x = self.embed(ids)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0]).transpose(1, 2)
        return torch.tanh(self.post(torch.relu(self.up(self.conv(x)))))


IDS = torch.randint(0, 40, (2, 30), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def module() -> Speech:
    """Return a seeded network."""
    torch.manual_seed(0)
    return Speech().eval()


def _recipe(scheme: str = "int8-static") -> Any:
    return find_recipe("module", scheme)


def _layers(root: nn.Module) -> list[FakeQuantizedLayer]:
    return [m for m in root.modules() if isinstance(m, FakeQuantizedLayer)]


def test_every_layer_is_swapped_as_the_recipe_says(module: Speech) -> None:
    prepared = prepare_qat(module, _recipe())
    student = prepared.module
    kinds = Counter(layer.geometry.operator for layer in _layers(student))
    # Two have few channels.
    assert kinds == {"Linear": 4, "Conv1d": 1, "ConvTranspose1d": 1, "Embedding": 1}
    four = prepare_qat(module, _recipe("int4-weight-only")).module
    assert Counter(layer.weight_fake_quant.group for layer in _layers(four)) == {
        64: 6,
        None: 3,
    }
    assert all(layer.activation_fake_quant is None for layer in _layers(four))
    dynamic = prepare_qat(module, _recipe("int8-dynamic")).module
    quantizers = [type(x.activation_fake_quant) for x in _layers(dynamic) if x.bias is not None]
    assert set(quantizers) == {DynamicFakeQuantize}


def test_without_rounding_it_is_the_original(module: Speech) -> None:
    expected = module(IDS)  # leaves computed weights, which torch cannot copy
    student = prepare_qat(module, _recipe()).module
    switch_fake_quant(student, on=False)
    torch.testing.assert_close(student(IDS), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scheme", ["int8-static", "int8-dynamic", "int8-weight-only"])
def test_with_rounding_it_is_what_compressing_gives(module: Speech, scheme: str) -> None:
    """Before any training: the same codes, the same ranges."""
    student = prepare_qat(module, _recipe(scheme)).module
    with torch.no_grad():
        switch_fake_quant(student, on=False)
        student(IDS)
        disable_observer(student)
        switch_fake_quant(student, on=True)
        small = compress(module, scheme, calibration=[IDS] if scheme == "int8-static" else None)
        torch.testing.assert_close(student(IDS), small(IDS), rtol=1e-3, atol=1e-4)


def test_every_parameter_is_its_own_and_learns(module: Speech) -> None:
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.requires_grad_(requires_grad=False)
    student = prepare_qat(module, _recipe()).module
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    student(IDS).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in student.parameters())
    optimizer.step()
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert isinstance(module.conv, nn.Conv1d)
    assert all(p.grad is None for p in module.parameters())


def test_what_is_tied_stays_tied() -> None:
    net = nn.Sequential(nn.Embedding(64, 64), nn.Linear(64, 64, bias=False))
    net[1].weight = net[0].weight
    student = prepare_qat(net, _recipe("int8-weight-only")).module
    first, second = _layers(student)
    assert first.weight is second.weight
    assert first.weight is not net[0].weight


@pytest.mark.parametrize("kind", [parametrizations.spectral_norm, parametrizations.orthogonal])
def test_weights_that_are_computed_learn(kind: Any) -> None:
    """Their graph ended behind the first step, and no optimizer had them."""
    net: Any = nn.Sequential(nn.Linear(64, 64), kind(nn.Linear(64, 64))).eval()
    student = prepare_qat(net, "int8-dynamic").module
    weight = student.get_parameter("1.weight")
    before = weight.detach().clone()
    torch.testing.assert_close(before, net[1].weight.detach())
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        student(torch.ones(3, 64)).square().sum().backward()
        optimizer.step()
    assert not torch.equal(weight, before)


def test_a_buffer_that_serves_as_weight_does_not_learn() -> None:
    layer = nn.Linear(64, 64)
    weight = layer.weight.detach()
    del layer.weight
    layer.register_buffer("weight", weight)
    student = prepare_qat(nn.Sequential(layer), "int8-dynamic").module
    assert not student.get_parameter("0.weight").requires_grad
    assert student.get_parameter("0.bias").requires_grad


def test_padding_stays_as_it_is() -> None:
    """Torch gives that row no gradient; it learned, and padding was heard afterwards."""
    net = nn.Sequential(nn.Embedding(20, 64, padding_idx=0), nn.Linear(64, 64))
    student = prepare_qat(net, "int8-weight-only").module
    student(torch.tensor([[0, 1, 0]])).square().sum().backward()
    gradient = student.get_parameter("0.weight").grad
    assert gradient is not None
    assert not gradient[0].any()
    assert gradient[1].any()


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_drops_out_where_it_trains(module: Speech, need_weights: bool) -> None:
    attention: Any = prepare_qat(module, "int8-dynamic").module.get_submodule("attention").train()
    x = torch.randn(2, 5, 64)
    found, again = (attention(x, x, x, need_weights=need_weights)[0] for _ in range(2))
    assert not torch.equal(found, again)
    attention.eval()
    assert torch.equal(*(attention(x, x, x, need_weights=need_weights)[0] for _ in range(2)))


def test_ranges_are_trained_if_asked_for(module: Speech) -> None:
    plain = prepare_qat(module, _recipe()).module
    assert not [name for name, _ in plain.named_parameters() if "log_stretch" in name]
    student = prepare_qat(module, _recipe(), learned_ranges=True).module
    assert sum("log_stretch" in name for name, _ in student.named_parameters()) == 6
    student(IDS).square().sum().backward()
    assert all(p.grad is not None for p in student.parameters())


def test_it_is_in_evaluation(module: Speech) -> None:
    """Dropout would be noise that the teacher never had."""
    student = prepare_qat(module.train(), _recipe()).module
    assert module.training
    assert not any(part.training for part in student.modules())
    assert torch.equal(student(IDS), student(IDS))


@pytest.mark.parametrize("learned", [False, True])
def test_copies_and_states_go_on_alike(module: Speech, learned: bool) -> None:
    student = prepare_qat(module, _recipe(), learned_ranges=learned).module
    student(IDS).square().sum().backward()
    torch.optim.SGD(student.parameters(), lr=0.1).step()
    same = copy.deepcopy(student)
    assert torch.equal(same(IDS.flip(0)), student(IDS.flip(0))), "observing goes on alike"
    disable_observer(student)
    other = prepare_qat(module, _recipe(), learned_ranges=learned).module
    other.load_state_dict(student.state_dict())
    assert torch.equal(other(IDS), student(IDS))


def test_an_error_while_observing_leaves_rounding_on(module: Speech) -> None:
    """Training that followed rounded nothing."""
    prepared = prepare_qat(module, _recipe())
    with torch.no_grad():
        with pytest.raises(QuantizationError, match="never observed"), prepared.observing():
            pass
        with pytest.raises(IndexError), prepared.observing():
            prepared.module(IDS + 40)
        assert not torch.allclose(prepared.module(IDS), module(IDS), atol=1e-5)


def test_damage_is_told_by_layer(module: Speech) -> None:
    student = prepare_qat(module, _recipe()).module
    with torch.no_grad():
        student.get_parameter("conv.weight")[0, 0, 0] = torch.nan
    with pytest.raises(QuantizationError, match=r"'conv': a weight is not finite"):
        student(IDS)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"match": "decoder.*"}, r"would change nothing.*\n- 'embed'"),
        ({"weights": "float16", "activations": "none"}, "nothing to train"),  # only stored small
    ],
)
def test_a_rule_that_trains_nothing_is_refused_with_reasons(
    module: Speech, changes: dict[str, str], told: str
) -> None:
    shipped = _recipe()
    rule = shipped.component[0].model_copy(update=changes)
    recipe = shipped.model_copy(update={"component": (rule,)})
    with pytest.raises(QuantizationError, match=told):
        prepare_qat(module, recipe)


@pytest.mark.parametrize(("scheme", "told"), [("fp16", "not to float16"), ("fp8", "not to float8")])
def test_what_is_not_trained_for_is_refused(module: Speech, scheme: str, told: str) -> None:
    with pytest.raises(QuantizationError, match=told):
        prepare_qat(module, _recipe(scheme))


def test_modules_that_cannot_be_trained_are_refused(module: Speech) -> None:
    with pytest.raises(QuantizationError, match="already compressed"):
        prepare_qat(compress(module, "int8"), _recipe())
    with pytest.raises(QuantizationError, match="already prepared"):
        prepare_qat(prepare_qat(module, _recipe()).module, _recipe())
    with pytest.raises(QuantizationError, match=r"'0' is torch.float16.*module.float\(\)"):
        prepare_qat(nn.Sequential(nn.Linear(64, 64)).half(), _recipe())
    with pytest.raises(QuantizationError, match="meta device"):
        prepare_qat(nn.Sequential(nn.Linear(64, 64, device="meta")), _recipe())
    with pytest.raises(RecipeError, match="float_residuals"):
        prepare_qat(module, _recipe().model_copy(update={"float_residuals": True}))


@pytest.mark.parametrize("scheme", ["int8-qat", "int4-weight-only"])
def test_any_loop_trains_between_the_two_with_labels_of_its_own(scheme: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    inputs = torch.randn(256, 64)
    labels = inputs[:, :4].argmax(dim=1)
    prepared = tts_compress.prepare_qat(net, scheme)
    student = prepared.module
    with prepared.observing(), torch.no_grad():
        student(inputs)
    losses = []
    optimizer = torch.optim.SGD(student.parameters(), lr=0.2)
    for _ in range(40):
        loss: Any = nn.functional.cross_entropy(student(inputs), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 2
    small = tts_compress.convert_qat(prepared).root
    assert any(isinstance(part, CompressedLayer) for part in small.modules())
    with torch.no_grad():
        deployed = nn.functional.cross_entropy(small(inputs), labels).item()
    assert deployed == pytest.approx(losses[-1], rel=0.1), "what was trained is what is deployed"
