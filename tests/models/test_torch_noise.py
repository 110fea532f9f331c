"""Two models get the same noise, sample for sample, in whatever type they compute."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tts_compress.errors import ModelError, TTSCompressError

torch = pytest.importorskip("torch")
torch_noise = pytest.importorskip("tts_compress.models.torch_noise")
noise_by_step, paired_noise = torch_noise.noise_by_step, torch_noise.paired_noise


_DRAWS: dict[str, Callable[[Any], Any]] = {
    "randn": lambda dtype: torch.randn(40, 3, dtype=dtype),
    "randn of a sequence": lambda dtype: torch.randn((40, 3), dtype=dtype),
    "randn by keyword": lambda dtype: torch.randn(size=[40, 3], dtype=dtype, device="cpu"),
    "randn of tensors": lambda dtype: torch.randn(torch.tensor(40), 3, dtype=dtype),
    "randn with a generator": lambda dtype: torch.randn(
        40, 3, dtype=dtype, generator=torch.Generator()
    ),
    "randn_like": lambda dtype: torch.randn_like(torch.empty(40, 3, dtype=dtype)),
    "normal_": lambda dtype: torch.empty(40, 3, dtype=dtype).normal_(),
    "nn.init.normal_": lambda dtype: torch.nn.init.normal_(torch.empty(40, 3, dtype=dtype)),
    "nn.init.uniform_": lambda dtype: torch.nn.init.uniform_(torch.empty(40, 3, dtype=dtype)),
    "normal": lambda dtype: torch.normal(torch.zeros(40, 3, dtype=dtype), 1.0),
    "normal of a size": lambda dtype: torch.normal(0.0, 1.0, (40, 3), dtype=dtype),
    "rand": lambda dtype: torch.rand(40, 3, dtype=dtype),
    "rand_like": lambda dtype: torch.rand_like(torch.empty(40, 3, dtype=dtype)),
    "uniform_": lambda dtype: torch.empty(40, 3, dtype=dtype).uniform_(),
    "exponential_": lambda dtype: torch.empty(40, 3, dtype=dtype).exponential_(),
    "exponential_ with a generator": lambda dtype: torch.empty(40, 3, dtype=dtype).exponential_(
        generator=torch.Generator()
    ),
}


@pytest.mark.parametrize("draw", _DRAWS.values(), ids=_DRAWS)
def test_every_type_gets_the_same_noise(draw: Callable[[Any], Any]) -> None:
    drawn = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        with paired_noise(5):
            drawn[dtype] = [draw(dtype), draw(dtype)]
        assert drawn[dtype][0].dtype == dtype
        assert drawn[dtype][0].shape == (40, 3)
    wanted = drawn[torch.float32]
    assert not wanted[0].equal(wanted[1])
    for dtype, noise in drawn.items():
        for found, exact in zip(noise, wanted, strict=True):
            assert found.equal(exact.to(dtype))


@pytest.mark.parametrize(
    ("draw", "mean", "deviation"),
    [
        (lambda: torch.randn(20_000), 0.0, 1.0),
        (lambda: torch.empty(20_000).normal_(3, 2), 3.0, 2.0),
        (lambda: torch.normal(torch.full((20_000,), 3.0), torch.tensor(2.0)), 3.0, 2.0),
        (lambda: torch.rand(20_000), 0.5, 12**-0.5),
        (lambda: torch.empty(20_000).uniform_(-2, 4), 1.0, 6 * 12**-0.5),
        (lambda: torch.empty(20_000).exponential_(0.5), 2.0, 2.0),
    ],
)
def test_noise_has_the_distribution_asked_for(
    draw: Callable[[], Any], mean: float, deviation: float
) -> None:
    with paired_noise(0):
        drawn = draw()
    assert drawn.mean().item() == pytest.approx(mean, abs=0.05 * deviation)
    assert drawn.std().item() == pytest.approx(deviation, rel=0.05)
    with paired_noise(None):
        assert draw().sub(mean).abs().max() < 1e-6


def test_seeds_choose_the_noise_and_leave_torch_alone() -> None:
    def draw(seed: int | tuple[int, ...]) -> Any:
        with paired_noise(seed):
            return torch.randn(8)

    torch.manual_seed(1)
    wanted = torch.randn(8)
    torch.manual_seed(1)
    assert draw(3).equal(draw(3))
    assert draw((3, 1)).equal(draw((3, 1)))
    different = {tuple(draw(seed).tolist()) for seed in (3, 4, (3, 1), (1, 3))}
    assert len(different) == 4
    assert torch.randn(8).equal(wanted)  # neither draws from the global generator nor seeds it
    with pytest.raises(TTSCompressError, match="seed -1 is negative"):
        draw((2, -1))


def test_multinomial_draws_with_the_probabilities_given() -> None:
    """Each index once without replacement; without noise the most probable."""
    weights = torch.tensor([1.0, 0.0, 2.0, 5.0])
    with paired_noise(0):
        drawn = torch.multinomial(weights.expand(20_000, 4), 1).flatten()
        repeated = torch.multinomial(weights, 20_000, replacement=True)
        each = torch.tensor([[1.0, 3.0, 2.0]] * 50).multinomial(3)
    for indices in (drawn, repeated):
        share = torch.bincount(indices, minlength=4) / len(indices)
        assert share.tolist() == pytest.approx([0.125, 0, 0.25, 0.625], abs=0.02)
    assert each.sort(dim=-1).values.tolist() == [[0, 1, 2]] * 50
    assert len(each.unique(dim=0)) > 1
    with paired_noise(None):
        certain = torch.multinomial(torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]]), 1)
    assert certain.tolist() == [[1], [0]]


def test_multinomial_pairs_models_that_hardly_differ() -> None:
    """The story of this file: a seed shared through torch draws other tokens in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(500, 64, generator=generator).softmax(-1)
    drawn = []
    for weights in (exact, exact.bfloat16()):
        with paired_noise(2):
            drawn.append(torch.multinomial(weights, 1))
    assert (drawn[0] == drawn[1]).float().mean() > 0.98


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_damaged_probabilities_are_an_error(bad: float) -> None:
    with paired_noise(0), pytest.raises(ModelError, match="probabilities are negative, not finite"):
        torch.multinomial(torch.tensor([2.0, bad]), 1)
    with paired_noise(0), pytest.raises(ModelError, match="all zero"):
        torch.multinomial(torch.zeros(2), 1)


def test_randomness_that_cannot_be_paired_is_an_error() -> None:
    with paired_noise(0), pytest.raises(ModelError, match="'randint', which cannot be paired"):
        torch.randint(3, (2,))
    with paired_noise(0), pytest.raises(ModelError, match="'bernoulli_'"):
        torch.empty(2).bernoulli_()


def test_an_inner_block_has_its_own_noise() -> None:
    with paired_noise(1):
        wanted = torch.randn(6)
    with paired_noise(0), paired_noise(1):
        assert torch.randn(6).equal(wanted)
    with paired_noise(1), torch.inference_mode():
        assert torch.randn(6).equal(wanted)
        filled = torch.empty(0)
        assert torch.randn(6, out=filled) is filled
        assert not filled.equal(wanted)


def test_a_block_covers_its_own_thread_only() -> None:
    with paired_noise(1):
        wanted = torch.randn(6)
    found: list[Any] = []
    with paired_noise(1):
        thread = threading.Thread(target=lambda: found.append(torch.randn(6)))
        thread.start()
        thread.join()
        assert torch.randn(6).equal(wanted)
    assert not found[0].equal(wanted)


def test_bernoulli_is_paired_whatever_the_type() -> None:
    p = torch.linspace(0, 1, 20_000)
    with paired_noise(4):
        first = torch.bernoulli(p)
    with paired_noise(4):
        second = p.bfloat16().bernoulli()
    assert second.dtype is torch.bfloat16
    assert set(first.unique().tolist()) == {0.0, 1.0}
    assert (first[0], first[-1]) == (0.0, 1.0)
    assert float(first.mean()) == pytest.approx(0.5, abs=0.02)
    assert float((first != second).float().mean()) < 0.01  # probabilities rounded to bfloat16
    with paired_noise(5):
        assert float(torch.bernoulli(p, p=0.25).mean()) == pytest.approx(0.25, abs=0.02)


def test_without_noise_bernoulli_takes_what_is_likelier() -> None:
    with paired_noise(None):
        assert torch.bernoulli(torch.tensor([0.1, 0.49, 0.5, 0.9])).tolist() == [0, 0, 1, 1]


def test_a_step_has_its_noise_whatever_was_drawn_before() -> None:
    """One of two models draws again where a token repeats, and ends an earlier part later."""
    module = torch.nn.Identity()

    def draw(seed: int | None, *, extra: int, longer: int) -> Any:
        drawn = []
        with paired_noise(seed):
            for part, steps in enumerate((2 + longer, 3)):
                with noise_by_step(module, part):
                    for _ in range(steps):
                        module(torch.zeros(1))
                        drawn.append(torch.rand(4))
                        torch.rand(extra)
        return torch.stack(drawn[-3:])

    assert draw(1, extra=0, longer=0).equal(draw(1, extra=5, longer=2))
    assert not draw(1, extra=0, longer=0).equal(draw(2, extra=0, longer=0))
    assert len(draw(1, extra=0, longer=0).unique()) == 12
    assert draw(None, extra=0, longer=0).eq(0.5).all()
    with noise_by_step(module):
        module(torch.zeros(1))  # torch draws as it likes
