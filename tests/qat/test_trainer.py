"""The result of a training, whatever happens on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from tts_compress.errors import QuantizationError
from tts_compress.qat.fake_quantize import FakeQuantize
from tts_compress.qat.options import TrainingOptions, TrainingRun
from tts_compress.qat.trainer import read_log

if TYPE_CHECKING:
    from tts_compress.qat.task import Example, TrainingTask


def _altered(task: TrainingTask, change: Callable[[Tensor, int], Tensor]) -> TrainingTask:
    """Return a task whose loss is not what it was, given how often it was computed for training."""
    calls = count(1)

    def loss(outputs: tuple[Tensor, ...], example: Example) -> Mapping[str, Tensor]:
        terms = task.loss(outputs, example)
        if not torch.is_grad_enabled():  # held-out examples are left alone
            return terms
        call = next(calls)
        return {name: change(term, call) for name, term in terms.items()}

    return replace(task, loss=loss)


@pytest.fixture(scope="module")
def options(toy: Any) -> Callable[..., TrainingOptions]:
    """Return a function that makes the toy's options."""
    return lambda **changes: TrainingOptions(**toy.OPTIONS | changes)


def _values(student: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in student.state_dict().items()}


def _is_same(student: nn.Module, values: dict[str, Tensor]) -> bool:
    return all(torch.equal(student.state_dict()[name], value) for name, value in values.items())


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the usual training."""
    return tmp_path_factory.mktemp("usual")


@pytest.fixture(scope="module")
def trained(toy: Any, options: Callable[..., TrainingOptions], log: Path) -> Any:
    """Return what the usual training made."""
    return toy.train(toy.make_task(), TrainingRun(options=options(), folder=log))


def test_student_is_nearer_to_its_teacher(trained: Any, toy: Any) -> None:
    before, after = trained.record.before, trained.record.after
    assert after["output/mse"] < 0.8 * before["output/mse"]
    assert trained.record.steps > 0
    task = toy.make_task()
    task.student.load_state_dict(trained.student.state_dict())
    with torch.no_grad():
        losses = [task.loss(task.student(*e.inputs), e) for e in task.held_out]
    mean = sum(float(loss["output/mse"]) for loss in losses) / len(losses)
    assert mean == pytest.approx(after["output/mse"], rel=1e-5)


def test_student_is_judged_by_what_it_is_converted_to(
    toy: Any, options: Callable[..., TrainingOptions]
) -> None:
    """It becomes something twice as far from the teacher."""
    sizes: list[int] = []

    def converted(student: nn.Module) -> Callable[..., tuple[Tensor, ...]]:
        def compute(*inputs: Tensor) -> tuple[Tensor, ...]:
            sizes.append(len(inputs[0]))
            return tuple(2 * output for output in student(*inputs))

        return compute

    task = replace(toy.make_task(), converted=converted)
    trained = toy.train(task, TrainingRun(options=options()))
    assert set(sizes) == {1}
    assert len(sizes) == len(task.held_out) * (1 + 24 // 6)
    with torch.no_grad():
        compute = converted(trained.student)
        losses = [task.loss(compute(*e.inputs), e) for e in task.held_out]
    mean = sum(float(loss["output/mse"]) for loss in losses) / len(losses)
    assert mean == pytest.approx(trained.record.after["output/mse"], rel=1e-5)


def test_record_of_a_training_is_complete(trained: Any, log: Path) -> None:
    events = read_log(log)
    assert [e["event"] for e in events if e["event"] != "update"] == [
        *("start", "held-out", "held-out", "held-out", "held-out", "held-out", "end")
    ]
    updates = [e for e in events if e["event"] == "update"]
    assert [e["step"] for e in updates] == list(range(1, 25))
    assert all({"loss", "rate", "norm", "output/mse"} <= e.keys() for e in updates)
    assert events[0]["matmul_precision"] == "highest: FP32"
    assert events[0]["processes"] == 1
    assert events[-1]["loss"] == trained.record.after["output/mse"]


def test_curves_go_to_tensorboard_where_it_is_installed(trained: Any, log: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = EventAccumulator(str(log / "tensorboard"))
    curves.Reload()
    assert len(curves.Scalars("update/loss")) == 24
    assert curves.Scalars("held-out/loss")[-1].value == pytest.approx(
        trained.record.after["output/mse"], rel=1e-6
    )


def test_ranges_are_observed_once_and_frozen(
    toy: Any, options: Callable[..., TrainingOptions]
) -> None:
    task, progress = toy.make_task("int8-qat"), toy.Recorder()
    toy.train(task, TrainingRun(options=options(observe=7), progress=progress))
    switches = [m for m in task.student.modules() if isinstance(m, FakeQuantize)]
    assert all(m.fake_quant_enabled[0] for m in switches)
    assert not any(m.observer_enabled[0] for m in switches if hasattr(m, "observer"))
    assert [done for stage, done, _ in progress.stages if stage == "observe"] == list(range(1, 8))


def test_learned_ranges_move(toy: Any, options: Callable[..., TrainingOptions]) -> None:
    task = toy.make_task("int8-qat", learned_ranges=True)
    toy.train(task, TrainingRun(options=options(range_learning_rate=0.01, learning_rate=1e-5)))
    stretches = [p for n, p in task.student.named_parameters() if n.endswith("log_stretch")]
    assert stretches
    assert all(p.abs().max() > 0 for p in stretches)


def test_diverging_run_keeps_what_was_there(
    toy: Any, options: Callable[..., TrainingOptions]
) -> None:
    task, progress = toy.make_task(), toy.Recorder()
    before = _values(task.student)
    trained = toy.train(task, TrainingRun(options=options(learning_rate=10.0), progress=progress))
    assert trained.record.steps == 0
    assert trained.record.after == trained.record.before
    assert _is_same(trained.student, before)
    assert any("none of 24 updates is better" in line for line in progress.lines)


def test_diverging_run_fails_if_so_wished(
    toy: Any, options: Callable[..., TrainingOptions]
) -> None:
    chosen = options(learning_rate=10.0, without_gain="fail")
    with pytest.raises(QuantizationError, match=r"none of 24 updates .* lower learning rate"):
        toy.train(toy.make_task(), TrainingRun(options=chosen))


def test_training_ends_early_where_nothing_gets_better(
    toy: Any, options: Callable[..., TrainingOptions], tmp_path: Path
) -> None:
    chosen = options(learning_rate=10.0, patience=2, steps=1000)
    toy.train(toy.make_task(), TrainingRun(options=chosen, folder=tmp_path))
    assert read_log(tmp_path)[-1]["step"] == 12


def test_one_bad_loss_costs_half_the_learning_rate(
    toy: Any, options: Callable[..., TrainingOptions], trained: Any, log: Path, tmp_path: Path
) -> None:
    # Two batches an update, of two lengths; the 27th loss belongs to update 14.
    task = _altered(toy.make_task(), lambda loss, call: loss * (math.inf if call == 27 else 1))
    progress = toy.Recorder()
    other = toy.train(task, TrainingRun(options=options(), folder=tmp_path, progress=progress))
    assert other.record.steps > 0
    events = read_log(tmp_path)
    (recovery,) = (e for e in events if e["event"] == "recovery")
    assert recovery["back_to"] in {5, 10}
    assert recovery["at"] - recovery["back_to"] <= 5
    rates = {e["step"]: e["rate"] for e in events if e["event"] == "update"}
    usual = {e["step"]: e["rate"] for e in read_log(log) if e["event"] == "update"}
    assert trained.record.steps > 0
    assert rates[24] == pytest.approx(usual[24] / 2)
    assert any("with half the learning rate" in line for line in progress.lines)


def test_losses_that_stay_bad_are_an_error(
    toy: Any, options: Callable[..., TrainingOptions]
) -> None:
    task = _altered(toy.make_task(), lambda loss, call: loss * (math.nan if call > 12 else 1))
    with pytest.raises(QuantizationError, match=r"broke down at update \d+ .*nan.*after 2 times"):
        toy.train(task, TrainingRun(options=options(recoveries=2)))


def test_bad_gradients_do_not_reach_the_weights(
    toy: Any, options: Callable[..., TrainingOptions]
) -> None:
    """A finite loss may have gradients that are not."""
    task = _altered(toy.make_task(), lambda loss, _: loss + (loss - loss.detach()).sqrt() * 0)
    before = _values(task.student)
    with pytest.raises(QuantizationError, match="gradients nan"):
        toy.train(task, TrainingRun(options=options(recoveries=1)))
    assert _is_same(task.student, before)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda task: task.held_out[0].targets[0].fill_(math.nan),
            "is output/mse nan before training",
        ),
        (lambda task: task.student.requires_grad_(False), "no trainable weight"),
    ],
)
def test_what_is_bad_from_the_start_is_an_error(
    toy: Any,
    options: Callable[..., TrainingOptions],
    damage: Callable[[TrainingTask], object],
    message: str,
) -> None:
    task = toy.make_task()
    damage(task)
    with pytest.raises(QuantizationError, match=message):
        toy.train(task, TrainingRun(options=options()))


@pytest.mark.slow
def test_batch_that_does_not_fit_is_taken_in_parts(
    toy: Any, options: Callable[..., TrainingOptions], trained: Any, tmp_path: Path
) -> None:
    task = toy.make_task()
    sizes: list[int] = []

    def refuse_large(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sizes.append(len(inputs[0]))
        if len(inputs[0]) > 1 and torch.is_grad_enabled():
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to")

    task.student.register_forward_pre_hook(refuse_large)
    progress = toy.Recorder()
    parts = toy.train(task, TrainingRun(options=options(), folder=tmp_path, progress=progress))
    assert max(sizes) > 1
    assert parts.record.after["output/mse"] == pytest.approx(
        trained.record.after["output/mse"], rel=1e-4
    )
    assert any(e["event"] == "memory" for e in read_log(tmp_path))
    assert any("out of memory" in line for line in progress.lines)


@pytest.mark.parametrize(
    ("raised", "error", "told"),
    [
        ("CUDA out of memory. Tried to allocate", QuantizationError, "not even one example fits"),
        ("mat1 and mat2 shapes cannot be multiplied", RuntimeError, "shapes cannot be multiplied"),
    ],
)
def test_a_lack_of_memory_for_one_example_is_told_from_other_errors(
    toy: Any,
    options: Callable[..., TrainingOptions],
    raised: str,
    error: type[Exception],
    told: str,
) -> None:
    task = toy.make_task()

    def refuse(_module: nn.Module, _inputs: tuple[Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            raise RuntimeError(raised)

    task.student.register_forward_pre_hook(refuse)
    with pytest.raises(error, match=told):
        toy.train(task, TrainingRun(options=options(batch_size=1)))


def test_accumulation_is_a_larger_batch(
    toy: Any, options: Callable[..., TrainingOptions], tmp_path: Path
) -> None:
    """Adam forgives gradients that are twice as large; the losses in the record would show it."""
    curves = []
    for name, sizes in (("one", {"batch_size": 8}), ("two", {"batch_size": 4, "accumulation": 2})):
        chosen = options(**sizes, steps=6)
        toy.train(toy.make_task(), TrainingRun(options=chosen, folder=tmp_path / name))
        curves.append([e["loss"] for e in read_log(tmp_path / name) if "loss" in e])
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)


def test_gradients_are_clipped(
    toy: Any, options: Callable[..., TrainingOptions], tmp_path: Path
) -> None:
    """Adam forgives a factor of all gradients; a clip that is met by some only changes the way."""
    free = toy.train(toy.make_task(), TrainingRun(options=options(clip=0.0), folder=tmp_path))
    norms = sorted(e["norm"] for e in read_log(tmp_path) if e["event"] == "update")
    clipped = toy.train(toy.make_task(), TrainingRun(options=options(clip=norms[12])))
    assert clipped.record.after != free.record.after


@pytest.mark.parametrize(("scheme", "rate"), [("int4-weight-only", 5e-5), ("int8-qat", 3e-6)])
def test_fewer_bits_are_learned_in_larger_steps(
    toy: Any, options: Callable[..., TrainingOptions], tmp_path: Path, scheme: str, rate: float
) -> None:
    """A rate that was given goes before; the first of no warm-up is the highest."""
    for given, expected in ((None, rate), (1e-4, 1e-4)):
        chosen = options(learning_rate=given, warm_up=0, steps=2)
        folder = tmp_path / str(given)
        toy.train(toy.make_task(scheme), TrainingRun(options=chosen, folder=folder))
        start, *_ = events = read_log(folder)
        assert start["learning_rate"] == expected
        assert next(e["rate"] for e in events if e["event"] == "update") == expected


def test_each_update_has_gradients_of_its_own(
    toy: Any, options: Callable[..., TrainingOptions], tmp_path: Path
) -> None:
    """Gradients of all examples at weights that hardly move are the same each time."""
    task = toy.make_task()
    chosen = options(batch_size=len(task.train), learning_rate=1e-12, clip=0.0)
    toy.train(task, TrainingRun(options=chosen, folder=tmp_path))
    first, *others = [e["norm"] for e in read_log(tmp_path) if e["event"] == "update"]
    assert others == pytest.approx([first] * 23, rel=1e-3)


def test_mixed_precision_trains_too(
    toy: Any, options: Callable[..., TrainingOptions], trained: Any
) -> None:
    mixed = toy.train(toy.make_task(), TrainingRun(options=options(mixed_precision="bf16")))
    assert mixed.record.steps > 0
    assert mixed.record.after != trained.record.after
    assert all(p.dtype == torch.float32 for p in mixed.student.parameters())


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_half_precision_needs_a_gpu(toy: Any, options: Callable[..., TrainingOptions]) -> None:
    with pytest.raises(QuantizationError, match=r"'fp16' needs a GPU.*give 'bf16' or 'no'"):
        toy.train(toy.make_task(), TrainingRun(options=options(mixed_precision="fp16")))


def test_training_leaves_torch_as_it_was(toy: Any, options: Callable[..., TrainingOptions]) -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    toy.train(toy.make_task(), TrainingRun(options=options(threads=2, steps=6)))
    assert torch.get_num_threads() == threads
    task = toy.make_task()  # seeds by itself
    torch.set_rng_state(state)
    toy.train(task, TrainingRun(options=options(steps=6, matmul_precision="medium")))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_float32_matmul_precision() == "highest"


def test_time_ends_a_training_with_an_evaluation(
    toy: Any, options: Callable[..., TrainingOptions], tmp_path: Path
) -> None:
    """It goes on where it was killed with what time it had left: none."""
    run = TrainingRun(options=options(minutes=1e-6), folder=tmp_path)
    for _ in range(2):
        toy.train(toy.make_task(), run)
        steps = [event["step"] for event in read_log(tmp_path) if event["event"] == "update"]
        judged = [event["step"] for event in read_log(tmp_path) if event["event"] == "held-out"]
        assert (steps, judged) == ([1], [0, 1])
