"""GPTQ against a naive form of its own algorithm, against rounding to nearest, and end to end."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.rules import make_recipe
from tests.told import Told
from tts_compress.compression import compress
from tts_compress.compression.modules import compress_system
from tts_compress.compression.workbench import Job
from tts_compress.errors import ModelError, QuantizationError
from tts_compress.models.base import Speaking
from tts_compress.numerics.weights import PAIR_LIMIT, gptq, neighbour_sums, round_weight
from tts_compress.recipes.formats import Algorithm
from tts_compress.recipes.recipe import Calibration, Recipe, Rule, read_calibration_set
from tts_compress.torch.layers.base import group_scales, round_groups
from tts_compress.torch.layers.floating import Int8WeightOnly
from tts_compress.torch.layers.int4 import Int4Linear
from tts_compress.torch.observe import observe_moments

_FOUR_BITS = (-8, 7)


def _inputs(seed: int, width: int, rows: int = 600) -> Tensor:
    """Return inputs that vary together: 16 directions and a little noise."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(rows, 16, generator=generator) @ torch.randn(16, width, generator=generator)
    return mixed / 4 + 0.2 * torch.randn(rows, width, generator=generator)


def _weight(seed: int, outputs: int, inputs: int) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) / 8


def _real(codes: Tensor, scales: Tensor) -> Tensor:
    grouped = codes.double().view(*scales.shape, -1) * scales.double().unsqueeze(-1)
    return grouped.view(codes.shape)


def _naive(weight: Tensor, moments: Tensor, scales: Tensor, damping: float) -> Tensor:
    """Return codes by the paper's greedy step, without blocks or Cholesky.

    Of the inputs that are left the first is rounded, and the others take over its error by the
    inverse of the moments that are left (equation 2), which loses that input by elimination
    (equation 3).
    """
    left = moments.double().clone()
    left += damping * left.diagonal().mean() * torch.eye(len(left), dtype=torch.float64)
    inverse, rest = torch.linalg.inv(left), weight.double().clone()
    group = weight.shape[1] // scales.shape[1]
    codes = torch.zeros_like(weight, dtype=torch.int8)
    for i in range(weight.shape[1]):
        step = scales[:, i // group].double()
        codes[:, i] = (rest[:, i] / step).round().clamp(*_FOUR_BITS).to(torch.int8)
        error = (rest[:, i] - codes[:, i] * step) / inverse[i, i]
        rest -= torch.outer(error, inverse[i])
        inverse = inverse - torch.outer(inverse[:, i], inverse[i]) / inverse[i, i]
    return codes


@pytest.mark.parametrize(("outputs", "inputs", "group"), [(24, 192, 64), (7, 96, 16), (3, 320, 32)])
def test_codes_are_those_of_the_naive_algorithm(outputs: int, inputs: int, group: int) -> None:
    x, weight = _inputs(0, inputs), _weight(1, outputs, inputs)
    moments, scales = x.t() @ x, group_scales(weight, group)
    found = gptq(weight, moments, scales, _FOUR_BITS)
    assert torch.equal(found, _naive(weight, moments, scales, damping=0.01))
    assert (found != round_groups(weight, scales)).float().mean() > 0.1


def test_inputs_that_do_not_vary_together_are_rounded_to_nearest() -> None:
    weight = _weight(0, 20, 128)
    scales = group_scales(weight, 32)
    nearest = round_groups(weight, scales)
    energies = torch.diag(torch.rand(128, generator=torch.Generator().manual_seed(0)))
    for moments in (torch.eye(128), energies, torch.zeros(128, 128)):
        assert torch.equal(gptq(weight, moments, scales, _FOUR_BITS), nearest)


def test_an_input_that_was_always_zero_is_rounded_to_nearest() -> None:
    """Not forgotten: what calibration does not reach may still happen."""
    x, weight = _inputs(0, 128), _weight(1, 20, 128)
    x[:, [3, 77]] = 0
    scales = group_scales(weight, 32)
    codes = gptq(weight, x.t() @ x, scales, _FOUR_BITS)
    assert torch.equal(codes[:, [3, 77]], round_groups(weight, scales)[:, [3, 77]])


def test_how_much_calibration_there_was_does_not_matter() -> None:
    x, weight = _inputs(0, 128), _weight(1, 20, 128)
    scales = group_scales(weight, 32)
    moments = (x.t() @ x).double()
    once = gptq(weight, moments, scales, _FOUR_BITS)
    assert torch.equal(gptq(weight, moments * 4096, scales, _FOUR_BITS), once)


def test_one_scale_per_channel_gains_in_int8_too() -> None:
    x, weight = _inputs(0, 96), _weight(1, 20, 96)
    codes, scales = round_weight(weight, 0, multiplied=False)
    chosen = gptq(weight, x.t() @ x, scales.unsqueeze(1), (-127, 127))
    assert int(chosen.abs().max()) <= 127
    errors = [
        float((x.double() @ (weight - _real(c, scales.unsqueeze(1))).t()).square().mean())
        for c in (codes, chosen)
    ]
    assert errors[1] < errors[0] / 4


@pytest.mark.parametrize("inputs", [96, 95])
def test_neighbours_stay_within_16_bits(inputs: int) -> None:
    """Compensation in later inputs may not push two neighbours' sum past the limit."""
    x, weight = _inputs(0, inputs), _weight(1, 20, inputs)
    codes, scales = round_weight(weight, 0, multiplied=True)
    limits, beside = (-127, 127), scales.unsqueeze(1) * 0.97  # a little too fine
    free = gptq(weight, x.t() @ x, beside, limits)
    bound = gptq(weight, x.t() @ x, beside, limits, pair_limit=PAIR_LIMIT)
    largest = [int(neighbour_sums(c.int()).abs().max()) for c in (free, bound)]
    assert largest[0] > PAIR_LIMIT >= largest[1]
    nearest = weight - _real(codes, scales.unsqueeze(1))
    chosen = weight - _real(bound, beside)
    errors = [float((x.double() @ e.t()).square().mean()) for e in (nearest, chosen)]
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize(("row", "bound"), [(4, False), (5, True)])
def test_taps_of_an_odd_number_of_inputs_have_neighbours_in_the_next(row: int, bound: bool) -> None:
    """Kernels begin a row of an odd number at either parity."""
    x, weight = _inputs(0, 4 * row), _weight(1, 64, 4 * row).abs()
    scales = weight.amax(1, keepdim=True) / 100
    codes = gptq(weight, x.t() @ x, scales, (-127, 127), pair_limit=PAIR_LIMIT, row=row).int()
    across = (codes[:, 1:-1:2] + codes[:, 2::2]).abs().max()
    assert bool(across <= PAIR_LIMIT) is bound
    assert (codes[:, ::2] + codes[:, 1::2]).abs().max() <= PAIR_LIMIT


class _Net(nn.Module):
    """Three projections of one input, one of them of it only at first, and a layer behind."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32, bias=False) for _ in range(4))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = x.clone()
        outputs: Tensor = self.q(x) + self.k(x)
        outputs = outputs + self.v(x if self.calls % 3 == 1 else x.mul_(2))  # at the same address
        return self.out(torch.relu(outputs))  # type: ignore[no-any-return]


def _by_hand(net: _Net, batches: list[Tensor]) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}

    def hook_for(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].reshape(-1, 32).double()
            sums[name] = sums.get(name, torch.zeros(32, 32, dtype=torch.float64)) + x.t() @ x

        return hook

    hooks = [getattr(net, n).register_forward_pre_hook(hook_for(n)) for n in ("q", "k", "v", "out")]
    for batch in batches:
        net(batch)
    for hook in hooks:
        hook.remove()
    return sums


@pytest.mark.parametrize("rows", [1, 100, 700])
@pytest.mark.parametrize("budget_bytes", [0, 2**30])
@pytest.mark.parametrize("inference", [False, True])
def test_moments_are_those_of_each_layer_however_many_passes(
    rows: int, budget_bytes: int, inference: bool
) -> None:
    torch.manual_seed(0)
    net = _Net()
    batches = [torch.randn(2, rows, 32) for _ in range(6)]
    passes = list[int]()

    def run(module: nn.Module) -> None:
        passes.append(len(passes))
        with torch.inference_mode(inference), torch.no_grad():
            for batch in batches:
                module(batch)

    names = ("q", "k", "v", "out")
    with torch.no_grad():
        expected = _by_hand(net, batches)
        found = list(observe_moments(net, names, run, budget_bytes=budget_bytes))
    members = [names for names, _ in found]
    assert ("q", "k") in members  # one sum for both
    assert sorted(sum(members, ())) == sorted(names)
    for shared, moments in found:
        for name in shared:
            torch.testing.assert_close(
                moments.double(), expected[name], rtol=1e-4, atol=1e-3 * rows
            )
    # `v` sees other inputs than it began with: it gets a pass of its own.
    assert len(passes) == (2 if budget_bytes else 3)


@pytest.mark.parametrize("runs", [(1, 2), (2, 0), (1, 0), (0, 2)])
def test_a_layer_that_runs_at_other_times_than_its_neighbour_does_not_share(
    runs: tuple[int, int],
) -> None:
    class Uneven(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 8), nn.Linear(32, 8)

        def forward(self, x: Tensor, more: int) -> Tensor:
            outputs: Tensor = self.a(x)
            for _ in range(more):
                outputs = outputs + self.b(x)
            return outputs

    torch.manual_seed(0)
    net, batches = Uneven(), torch.randn(2, 5, 32)

    def run(module: nn.Module) -> None:
        for batch, more in zip(batches, runs, strict=True):
            module(batch, more)

    with torch.no_grad():
        found = {n: s for names, s in observe_moments(net, ("a", "b"), run) for n in names}
    sums = [batch.t() @ batch for batch in batches]
    torch.testing.assert_close(found["a"], sums[0] + sums[1])
    torch.testing.assert_close(found["b"], runs[0] * sums[0] + runs[1] * sums[1])


def test_layers_that_only_began_alike_take_one_pass_more() -> None:
    """A first step of silence is the same everywhere."""
    net = nn.ModuleList(nn.Linear(32, 8) for _ in range(4))
    torch.manual_seed(0)
    inputs, passes = (torch.zeros(4, 3, 32), torch.randn(4, 3, 32)), list[int]()

    def run(root: nn.Module) -> None:
        passes.append(len(passes))
        for values in inputs:
            for layer, x in zip(root.children(), values, strict=True):
                layer(x)

    with torch.no_grad():
        found = {names[0]: moments for names, moments in observe_moments(net, tuple("0123"), run)}
    for name, x in zip("0123", inputs[1], strict=True):
        torch.testing.assert_close(found[name], x.t() @ x)
    assert len(passes) == 2


def test_layers_calibration_never_runs_or_damages_are_an_error() -> None:
    net = _Net()
    with pytest.raises(QuantizationError, match="never ran 1 layers, such as 'out'"):
        list(
            observe_moments(
                net, ("q", "out"), lambda root: root.get_submodule("q")(torch.ones(1, 32))
            )
        )
    with pytest.raises(QuantizationError, match="the input of 'q' is not finite"):
        list(
            observe_moments(
                net, ("q",), lambda root: root.get_submodule("q")(torch.full((1, 32), float("nan")))
            )
        )


def _encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def _recipe(weights: Any = "int4", algorithm: Any = "gptq") -> Recipe:
    return make_recipe(
        {"operators": ("Linear",), "weights": weights, "group_size": 32, "algorithm": algorithm},
        family="module",
        scheme=f"{weights}-weight-only",
    )


@pytest.mark.parametrize(("weights", "kind"), [("int4", Int4Linear), ("int8", Int8WeightOnly)])
def test_a_module_is_compressed_with_a_recipe_that_says_so(
    weights: str, kind: type[nn.Module]
) -> None:
    encoder, told = _encoder(), Told()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    batches = list(_inputs(0, 64, rows=640).view(8, 2, 40, 64))
    outputs = {}
    for algorithm in ("rtn", "gptq"):
        recipe = _recipe(weights, algorithm)
        small = compress(
            encoder,
            recipe.scheme,
            recipe=recipe,
            calibration=batches if algorithm == "gptq" else None,
            progress=told,
        )
        layers = [module for module in small.modules() if isinstance(module, kind)]
        assert len(layers) == 12
        assert all(getattr(layer, "group", 32) == 32 for layer in layers)
        with torch.no_grad():
            outputs[algorithm] = torch.cat([small(batch) for batch in batches])
    with torch.no_grad():
        expected = torch.cat([encoder(batch) for batch in batches])
    errors = {name: float((found - expected).square().mean()) for name, found in outputs.items()}
    assert errors["gptq"] < errors["rtn"] / 2
    assert all(torch.equal(encoder.state_dict()[name], value) for name, value in before.items())
    assert ("calibrate", 8, 8) in told.steps
    assert ("round", 12, 12) in told.steps


class _Speaker:
    """A minimal torch model around the encoder; it speaks a text's letters."""

    family, spec, manifest = "module", "in memory", None
    speaking = Speaking()

    def __init__(self, root: nn.Module, manifest: Any = None) -> None:
        self._root, self.manifest = root, manifest

    def root(self) -> nn.Module:
        return self._root

    def with_root(self, root: nn.Module, manifest: Any) -> "_Speaker":
        return _Speaker(root, manifest)

    def files(self) -> Any:
        raise ModelError("made in memory")

    def synthesize(self, text: str, *, seed: int = 0) -> Tensor:
        letters = torch.tensor([ord(letter) for letter in text]) + seed
        with torch.inference_mode():
            spoken: Tensor = self._root(torch.sin(letters[None, :, None] * torch.arange(1, 65)))
        return spoken


def _compress(model: Any, recipe: Recipe, progress: Told) -> Any:
    return compress_system(model, recipe, None, Job(seed=5, progress=progress))


def test_a_model_is_calibrated_by_speaking() -> None:
    settings = Calibration(set="en", utterances=3)
    recipe, told = _recipe().model_copy(update={"calibration": settings}), Told()
    speaker: Any = _Speaker(_encoder())
    small: Any = _compress(speaker, recipe, told)
    nearest: Any = _compress(speaker, _recipe(algorithm="rtn"), told)
    assert small.manifest.recipe["component"][0]["algorithm"] == "gptq"
    assert small.manifest.counts == nearest.manifest.counts == {"Linear int4/none": 12}
    errors = []
    for model in (nearest, small):
        texts = read_calibration_set("en").texts[:3]
        pairs = [
            (m.synthesize(t, seed=5 + i) for m in (speaker, model)) for i, t in enumerate(texts)
        ]
        errors.append(sum(float((a - b).square().mean()) for a, b in pairs))
    assert errors[1] < errors[0] / 2


def test_a_damaged_weight_is_an_error_before_calibration() -> None:
    encoder = _encoder()
    weight: Any = encoder.get_parameter("layers.1.linear2.weight")
    weight.data[3, 5] = float("inf")
    with pytest.raises(QuantizationError, match=r"'layers\.1\.linear2\.weight'.*not finite"):
        compress(encoder, "int4-weight-only", recipe=_recipe(), calibration=[torch.ones(1, 3, 64)])


@pytest.mark.parametrize("weights", ["float32", "float16", "bfloat16"])
def test_there_is_no_choice_of_codes_without_codes(weights: Any) -> None:
    with pytest.raises(ValueError, match=f"'gptq' does not go with weights '{weights}'"):
        Rule(match="*", weights=weights, algorithm=Algorithm.GPTQ)


def test_an_algorithm_that_observes_needs_calibration() -> None:
    made = _recipe().model_dump()
    with pytest.raises(ValueError, match=r"needs a \[calibration\] table"):
        Recipe.model_validate(made | {"calibration": None})


def test_the_same_calibration_gives_the_same_bytes() -> None:
    encoder, batches = _encoder(), [_inputs(0, 64, rows=80).view(2, 40, 64)]
    states = [
        compress(encoder, "int4-weight-only", recipe=_recipe(), calibration=batches).state_dict()
        for _ in range(2)
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
