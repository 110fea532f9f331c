"""Training of any system: a few updates, a way to stop in the middle, how near the result is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.measures import snr_db
from tests.texts import write_set
from tests.told import Told
from tts_compress.qat.options import TrainingOptions

pytest.register_assert_rewrite("tests.families.conformance")


class Stopped(Exception):  # noqa: N818  no error, a test's way out
    """Ends a training."""


class Listener(Told):
    """Keeps the progress of a training, and ends it at an update of a component on request."""

    def __init__(self, stop: tuple[str, int] | None = None) -> None:
        super().__init__()
        self._stop = stop

    def advance(self, stage: str, done: int, total: int) -> None:
        """Keep a step."""
        super().advance(stage, done, total)
        if (stage, done) == self._stop:
            raise Stopped


@pytest.fixture
def listener() -> type[Listener]:
    """Return the class of progress that notes, and may stop."""
    return Listener


@pytest.fixture
def stopped() -> type[Stopped]:
    """Return the exception that a listener raises to stop."""
    return Stopped


@pytest.fixture(scope="session")
def write_texts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[str]], str]:
    """Return a function that writes a calibration set and returns its path."""

    def write(texts: Sequence[str]) -> str:
        return str(write_set(tmp_path_factory.mktemp("texts") / "few.toml", texts))

    return write


@pytest.fixture(scope="session")
def few_updates() -> TrainingOptions:
    """Return options of a training of seconds."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    from tts_compress.qat.options import TrainingOptions

    torch.set_num_threads(1)  # networks this small only wait for a second one
    return TrainingOptions(
        steps=16,
        learning_rate=1e-4,
        warm_up=2,
        averaging=0.5,
        held_out_every=8,
        checkpoint_every=5,
        threads=1,
    )


@pytest.fixture(scope="session")
def train_on(
    few_updates: TrainingOptions, write_texts: Callable[[Sequence[str]], str]
) -> Callable[..., Callable[..., Any]]:
    """Return a factory of functions that train a model on texts, in four bits by default."""
    from tts_compress.compression import compress_trained
    from tts_compress.qat.options import TrainingRun

    def make(model: Any, texts: Sequence[str], **changes: Any) -> Callable[..., Any]:
        written, options = write_texts(texts), replace(few_updates, **changes)

        def train(scheme: str = "int4-weight-only", **run: Any) -> Any:
            return compress_trained(
                model, scheme, calibration=written, run=TrainingRun(options=options, **run)
            )

        return train

    return make


@pytest.fixture
def resume(
    listener: type[Listener], stopped: type[Stopped], tmp_path: Path
) -> Callable[..., list[str]]:
    """Return a function that stops and resumes a training, and compares it with an unstopped one.

    It returns the messages of the training after the stop.
    """

    def check(train: Callable[..., Any], whole: Any, stop: tuple[str, int]) -> list[str]:
        folder = tmp_path / "training"
        with pytest.raises(stopped):
            train(folder=folder, progress=listener(stop))
        told = listener()
        resumed = train(folder=folder, progress=told).save(tmp_path / "resumed")
        expected = whole.save(tmp_path / "whole")
        files = sorted(path.relative_to(expected) for path in expected.rglob("*") if path.is_file())
        assert files
        for file in files:
            assert (resumed / file).read_bytes() == (expected / file).read_bytes(), file
        assert any("resuming after" in line for line in told.lines)
        return told.lines

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Agreement of a deployed component with its fake-quantized student."""

    snr_db: float
    """Ratio of its output for a call to that output's difference from the student's."""

    loss_ratio: float
    """Its loss on that call over the student's."""

    layers_db: float
    """The least ratio of its layers, each given what the student's is given: no difference that
    one layer makes of another's."""


@pytest.fixture
def deployed() -> Callable[..., dict[str, Agreement]]:
    """Return a function that compares each deployed component with its student before training.

    Layers that are only stored in 16 bits stay in FP32: while training they are, and what that
    changes moves a code here and there, which networks of random weights make much of.
    """

    def compare(model: Any, scheme: str, texts: Sequence[str]) -> dict[str, Agreement]:
        from tts_compress import find_recipe
        from tts_compress.progress import Silent
        from tts_compress.qat.prepare import convert_qat, prepare_qat
        from tts_compress.qat.training import call_task, record_calls

        recipe = find_recipe(model.family, scheme)
        rules = tuple(
            rule.model_copy(update={"weights": "float32"}) if rule.weights == "float16" else rule
            for rule in recipe.component
        )
        prepared = prepare_qat(model.root(), recipe.model_copy(update={"component": rules}))
        seeded = [(text, number) for number, text in enumerate(texts)]
        converted = convert_qat(prepared).root
        found = {}
        for dataset in record_calls(model, prepared.module, seeded, progress=Silent()):
            name = dataset.objective.module
            student = prepared.module.get_submodule(name)
            task = call_task(dataset, model.root(), student, sample_rate=model.sample_rate)
            found[dataset.objective.name] = _agreement(task, converted.get_submodule(name))
        return found

    return compare


def _agreement(task: Any, module: Any) -> Agreement:
    import torch

    from tts_compress.qat.prepare import FakeQuantizedLayer

    calls: dict[str, tuple[Any, Any]] = {}

    def record(name: str) -> Callable[[Any, Any, Any], None]:
        # Copies: some blocks change a layer's output in place.
        return lambda _, inputs, output: calls.update(
            {name: ([tensor.clone() for tensor in inputs], output.clone())}
        )

    hooks = [
        layer.register_forward_hook(record(name))
        for name, layer in task.student.module.named_modules()
        if isinstance(layer, FakeQuantizedLayer)
    ]
    example = task.held_out[0]
    with torch.no_grad():
        student = task.student(*example.inputs)
        for hook in hooks:
            hook.remove()
        layers_db = min(
            snr_db(output.numpy(), module.get_submodule(name)(*inputs).numpy())
            for name, (inputs, output) in calls.items()
        )
        task.student.module = module
        found = task.student(*example.inputs)
        losses = [sum(task.loss(answers, example).values()) for answers in (found, student)]
    pairs = zip(student, found, strict=True)
    return Agreement(
        snr_db=min(snr_db(one.numpy(), other.numpy()) for one, other in pairs),
        loss_ratio=float(losses[0] / losses[1]),
        layers_db=layers_db,
    )
