"""The order of the training examples."""

from collections import Counter

import pytest
import torch

from tts_compress.qat.optimization import batch_indices, joined, rate_share, spread
from tts_compress.qat.options import TrainingOptions
from tts_compress.qat.task import Example


def test_every_example_comes_once_before_any_comes_again() -> None:
    places = [place for step in range(7) for place in batch_indices(10, 3, step, seed=0)]
    assert sorted(places[:10]) == sorted(places[10:20]) == list(range(10))
    assert places[:10] != places[10:20]


def test_batches_follow_from_seed_and_step_alone() -> None:
    later = [batch_indices(10, 4, step, seed=3) for step in range(9)]
    assert batch_indices(10, 4, 8, seed=3) == later[8]
    assert [batch_indices(10, 4, step, seed=4) for step in range(9)] != later


def test_batches_may_be_larger_than_everything_there_is() -> None:
    assert Counter(batch_indices(3, 7, 0, seed=0)).total() == 7
    assert set(Counter(batch_indices(3, 6, 5, seed=0)).values()) == {2}


def test_twice_the_batch_is_two_batches() -> None:
    twice = [place for step in range(4) for place in batch_indices(11, 8, step, seed=0)]
    once = [index for step in range(8) for index in batch_indices(11, 4, step, seed=0)]
    assert twice == once


def _example(length: int, value: float) -> Example:
    tensor = torch.full((1, length), value)
    return Example(inputs=(tensor,), targets=(tensor + 1, tensor + 2))


def test_examples_of_equal_shapes_are_joined() -> None:
    batches = list(joined([_example(3, 0), _example(2, 1), _example(3, 2)]))
    assert [size for _, size in batches] == [2, 1]
    first, second = (batch for batch, _ in batches)
    assert first.inputs[0][:, 0].tolist() == [0, 2]
    assert first.targets[1][:, 0].tolist() == [2, 4]
    assert second.inputs[0].shape == (1, 2)


def test_what_has_no_axis_to_be_joined_along_stays_alone() -> None:
    """Nor does what has another first axis: the first of an LSTM's output is the time."""
    for other in (torch.tensor(2.0), torch.ones(5, 1, 3)):
        example = Example(inputs=(torch.ones(1, 3), other), targets=())
        assert [size for _, size in joined([example, example])] == [1, 1]


def test_examples_to_judge_by_are_spread() -> None:
    assert spread(range(3), 16) == [0, 1, 2]
    assert spread(range(100), 4) == [12, 37, 62, 87]


def test_learning_rate_rises_and_falls() -> None:
    options = TrainingOptions(steps=100, warm_up=10)
    shares = [rate_share(options, step) for step in range(101)]
    assert shares[:11] == sorted(shares[:11])
    assert shares[10] == 1
    assert shares[10:] == sorted(shares[10:], reverse=True)
    assert shares[100] == pytest.approx(0.01)


def test_learning_rate_falls_with_time_where_that_is_used_up_sooner() -> None:
    options = TrainingOptions(steps=100, warm_up=10, minutes=2.0)
    assert rate_share(options, 10, 60.0) == pytest.approx(rate_share(options, 55))
    assert rate_share(options, 55, 6.0) == rate_share(options, 55)
    assert rate_share(options, 55, 600.0) == pytest.approx(0.01)
