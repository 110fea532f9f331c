"""A system in torch is trained component by component, on the calls of its original."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.texts import write_set
from tests.told import Told
from tts_compress import compress, find_recipe
from tts_compress.audio import Audio
from tts_compress.compression.modules import speaking
from tts_compress.compression.workbench import describe, read_texts
from tts_compress.errors import ArtifactError, ModelError, QuantizationError, RecipeError
from tts_compress.models.base import Objective, Speaking, Tokens
from tts_compress.models.speakers import NO_SPEAKERS
from tts_compress.progress import Silent
from tts_compress.qat.options import TrainingOptions, TrainingRun
from tts_compress.qat.prepare import prepare_qat
from tts_compress.qat.task import TrainingTask
from tts_compress.qat.trainer import read_log
from tts_compress.qat.training import RecordedCalls, call_task, record_calls, train_system
from tts_compress.recipes.recipe import Calibration, Recipe
from tts_compress.torch.layers.base import CompressedLayer

_OPTIONS = TrainingOptions(
    steps=30, learning_rate=1e-3, warm_up=2, averaging=0.5, held_out_every=10, threads=1
)
_SEEDED = [(text, number) for number, text in enumerate(("abcd", "bcdabc", "cdab", "dabcda"))]


class Estimator(nn.Module):
    """Keeps what it made of the text from one step to the next, as solvers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(64, 64)
        self.step = nn.Linear(64, 64)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor, text: Tensor, *, cache: bool = False, loud: float = 1) -> Tensor:
        """Return a state of the same shape."""
        read = self.kept if cache and self.kept is not None else self.read(text)
        if cache:
            self.kept = read
        return torch.tanh(self.step(x) * loud + read)


class Decoder(nn.Module):
    """Is called by a method of its own, which no gradient leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 16)

    @torch.inference_mode()
    def decode(self, x: Tensor) -> Tensor:
        """Return samples, 16 for each state."""
        return 0.3 * torch.tanh(self.out(x).flatten())


class System:
    """Speaks a sample or so for each letter."""

    family, sample_rate, spec, manifest = "module", 16_000, "toy", None

    def __init__(self, root: nn.Module, objectives: Sequence[Objective]) -> None:
        self._root = root
        self._objectives = tuple(objectives)

    def root(self) -> nn.Module:
        """Return the live components."""
        return self._root

    def objectives(self) -> tuple[Objective, ...]:
        """Return the training objectives."""
        return self._objectives

    def with_root(self, root: nn.Module, manifest: Any) -> Any:
        """Return a system around other components."""
        made = type(self)(root, self._objectives)
        made.manifest = manifest
        return made

    def files(self) -> Any:
        """Raise: it was made in memory."""
        raise ModelError("no files")

    @torch.inference_mode()
    def synthesize(self, text: str, *, seed: int = 0) -> Audio:
        """Speak in three steps, of which the last is louder."""
        parts: Any = dict(self._root.named_children())
        noise = torch.Generator().manual_seed(seed)
        letters = torch.tensor([[ord(letter) % 16 for letter in text]])
        read = parts["voice"](torch.ones(1, 64)) + nn.functional.one_hot(letters, 64).float()
        x = torch.randn(1, len(text), 64, generator=noise)
        parts["estimator"].kept = None
        for loud in (1, 1, 2):
            x = x + parts["estimator"](x, read, cache=True, loud=loud)
        samples = parts["decoder"].decode(x)
        return Audio(samples=samples.numpy().astype(np.float32), sample_rate=self.sample_rate)


def _objective(module: str, loss: Any = "mse", **changes: Any) -> Objective:
    return Objective(module=module, loss=loss, **changes)


_ESTIMATOR = _objective("estimator", repeated=(("cache", False),))
_DECODER = _objective("decoder", "waveform", method="decode")


def _root() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "voice": nn.Linear(64, 64),
            "silent": nn.Linear(64, 64),
            "estimator": Estimator(),
            "decoder": Decoder(),
        }
    ).eval()


def _system(*objectives: Objective) -> Any:
    return System(_root(), objectives or (_ESTIMATOR, _DECODER))


def _datasets(model: Any, progress: Any = None, texts: Any = _SEEDED) -> list[RecordedCalls]:
    prepared = prepare_qat(model.root(), find_recipe("module", "int4-weight-only"))
    return record_calls(model, prepared.module, texts, progress=progress or Silent())


def _task(model: Any, dataset: RecordedCalls) -> TrainingTask:
    student = prepare_qat(model.root(), find_recipe("module", "int4-weight-only"))
    component = student.module.get_submodule(dataset.objective.module)
    return call_task(dataset, model.root(), component, sample_rate=16_000)


@pytest.fixture
def texts(tmp_path: Path) -> str:
    """Return the path of a calibration set."""
    return str(write_set(tmp_path / "letters.toml", [text for text, _ in _SEEDED]))


def test_whole_texts_are_held_out() -> None:
    estimator, decoder = _datasets(_system())
    assert [len(estimator.train), len(estimator.held_out)] == [9, 3]
    assert [len(decoder.train), len(decoder.held_out)] == [3, 1]
    assert {call.arguments[0].shape[1] for call in estimator.held_out} == {len(_SEEDED[-1][0])}


def test_components_without_anything_to_train_on_are_named() -> None:
    told = Told()
    model = _system(_objective("voice"), _objective("silent"), _DECODER)
    assert [dataset.objective.name for dataset in _datasets(model, told)] == ["decoder.decode"]
    assert told.lines == [
        "voice gets the same inputs for every text: it is rounded without training",
        "silent is not called: it is rounded without training",
    ]
    with pytest.raises(QuantizationError, match="rounds no component that can be trained"):
        _datasets(_system(_objective("voice")))
    with pytest.raises(ModelError, match="no module 'flow'"):
        _datasets(_system(_objective("flow")))


def test_components_that_are_not_rounded_are_not_trained() -> None:
    told, model = Told(), _system(_objective("silent"), _DECODER)
    prepared = prepare_qat(model.root(), _recipe("int4-weight-only"))
    (dataset,) = record_calls(model, prepared.module, _SEEDED, progress=told)
    assert dataset.objective.name == "decoder.decode"
    assert told.lines == ["silent is not rounded: it is not trained"]
    told = Told()
    model = _system(_objective("silent"))
    with pytest.raises(QuantizationError, match="rounds no component that can be trained"):
        record_calls(model, prepared.module, _SEEDED, progress=told)
    assert "record" not in told.stages


def test_what_keeps_something_between_calls_is_refused_unless_that_is_switched_off() -> None:
    model = _system(_objective("estimator"))
    with pytest.raises(ModelError, match="'estimator' fails when a call is repeated"):
        _task(model, _datasets(model)[0])
    alike = [("abcd", 0), ("dcba", 1)]
    with pytest.raises(ModelError, match="'estimator' returns something else when"):
        _task(model, _datasets(model, texts=alike)[0])
    model = _system()
    task = _task(model, _datasets(model, texts=alike)[0])
    assert [len(task.train), len(task.held_out)] == [3, 3]


def test_calls_may_differ_in_what_is_no_tensor() -> None:
    model = _system()
    task = _task(model, _datasets(model)[0])
    kinds = [int(example.inputs[0]) for example in task.train]
    assert kinds == [0, 0, 1] * 3
    for example in task.held_out:
        outputs = task.student(*example.inputs)
        assert 0 < float(task.loss(outputs, example)["mse"].detach()) < 0.1
        assert float(task.loss(example.targets, example)["mse"]) == 0


def test_gradients_leave_methods_that_upstream_keeps_them_in() -> None:
    model = _system(_DECODER)
    task = _task(model, _datasets(model)[0])
    example = task.train[0]
    terms = task.loss(task.student(*example.inputs), example)
    assert set(terms) == {"waveform", "log-mel"}
    sum(terms.values()).backward()  # type: ignore[union-attr]
    assert all(p.grad is not None and p.grad.any() for p in task.student.parameters())


def _recipe(scheme: str) -> Recipe:
    """Return a recipe that leaves out what is never called: nothing would observe it."""
    found = find_recipe("module", scheme)
    rules = tuple(rule.model_copy(update={"exclude": ("silent",)}) for rule in found.component)
    return found.model_copy(update={"component": rules})


def _codes(root: nn.Module, name: str) -> Tensor:
    layer = root.get_submodule(name)
    assert isinstance(layer, CompressedLayer)
    return layer.state()["weight"]


def _train(model: Any, recipe: Recipe, texts: str, run: TrainingRun) -> Any:
    """Return the system around its trained components."""
    seed = run.options.seed
    found, _ = read_texts(Calibration(), texts, seed)
    seeded = [(text, seed + number) for number, text in enumerate(found)]
    speak = speaking(model, seeded, run.progress)
    done, training = train_system(model, recipe, seeded, speak, run=run)
    manifest = describe(model, recipe, done, calibration=None, training=training, seed=seed)
    return model.with_root(done.root, manifest)


def test_a_component_is_trained_and_no_other(texts: str) -> None:
    told, model, recipe = Told(), _system(_ESTIMATOR), _recipe("int4-weight-only")
    before = {name: value.clone() for name, value in model.root().state_dict().items()}
    made = _train(model, recipe, texts, TrainingRun(options=_OPTIONS, progress=told))
    assert all(torch.equal(before[n], value) for n, value in model.root().state_dict().items())
    assert made.manifest is not None
    training = made.manifest.training
    assert training is not None
    assert set(training.before) == {"estimator/mse"}
    assert training.after["estimator/mse"] < 0.9 * training.before["estimator/mse"]
    assert 0 < training.steps <= _OPTIONS.steps
    assert {"record", "train estimator"} <= {*told.stages}
    assert any(line.startswith("estimator: update 30 of 30") for line in told.lines)
    plain, trained = compress(model.root(), "int4-weight-only", recipe=recipe), made.root()
    same = {
        name
        for name in ("voice", "decoder.out", "estimator.read", "estimator.step")
        if torch.equal(_codes(plain, name), _codes(trained, name))
    }
    assert same == {"voice", "decoder.out"}
    assert np.isfinite(made.synthesize("abcd", seed=0).samples).all()


def test_a_training_with_other_options_begins_anew_if_it_is_told_to(
    texts: str, tmp_path: Path
) -> None:
    model, recipe = _system(_ESTIMATOR), _recipe("int4-weight-only")

    def steps(count: int, **changes: Any) -> list[int]:
        options = replace(_OPTIONS, steps=count)
        run = TrainingRun(options=options, folder=tmp_path / "training", **changes)
        _train(model, recipe, texts, run)
        log = read_log(tmp_path / "training" / "estimator")
        return [event["step"] for event in log if event["event"] == "update"]

    assert steps(2) == [1, 2]
    with pytest.raises(ArtifactError, match="of another training: steps 2 there, 3 here"):
        steps(3)
    assert steps(3, restart=True) == [1, 2, 3]
    assert steps(3) == [1, 2, 3]


def test_ranges_are_observed_in_speech_also_where_nothing_is_trained(texts: str) -> None:
    told, model = Told(), _system(_ESTIMATOR)
    run = TrainingRun(options=_OPTIONS, progress=told)
    made = _train(model, _recipe("int8-static"), texts, run)
    assert "calibrate" in told.stages
    assert "observe estimator" not in told.stages
    assert made.manifest is not None
    assert made.manifest.counts["Linear int8/static"] == 4
    spoken, meant = (m.synthesize("abcd", seed=0).samples for m in (made, model))
    assert np.abs(spoken - meant).max() < 0.05 * np.abs(meant).max()


def test_one_text_is_not_enough() -> None:
    model = _system()
    with pytest.raises(RecipeError, match="1 texts to train on"):
        record_calls(model, model.root(), _SEEDED[:1], progress=Silent())


class Chatty(System):
    """Calls its decoder step by step while it speaks, and once when it scores tokens."""

    def generate_tokens(self, text: str, *, seed: int) -> Tokens:
        """Speak, and return a token for each letter."""
        self.synthesize(text, seed=seed)
        parts: Any = self._root
        for letter in text:
            parts["silent"](torch.full((1, 64), float(ord(letter) * len(text))))
        ids = np.array([[0], *([ord(letter)] for letter in text)], np.int64)
        return Tokens(ids=ids, chosen=np.ones((len(text), 1), bool))

    def logits(self, text: str, tokens: Tokens) -> Any:
        """Score the generated tokens in one call."""
        del text
        parts: Any = self._root
        seen = nn.functional.one_hot(torch.from_numpy(tokens.ids[:-1, 0]) % 64, 64).float()
        return parts["silent"](seen)


def test_scores_are_recorded_while_tokens_are_read() -> None:
    model = Chatty(_root(), (_objective("silent", "kl"), _DECODER))
    scores, decoder = _datasets(model)
    assert [call.arguments[0].shape[0] for call in scores.train] == [4, 6, 4]
    assert len(decoder.train) == 3
    task = _task(model, scores)
    example = task.train[0]
    assert set(task.loss(task.student(*example.inputs), example)) == {"kl"}
    with pytest.raises(ModelError, match="have none"):
        _datasets(_system(_objective("silent", "kl")))


def test_what_hears_descriptions_hears_every_text_as_one() -> None:
    class Described(Chatty):
        description = "calm"
        speakers = NO_SPEAKERS

        def speaking_as(self, speaking: Speaking) -> Any:
            made = self.with_root(self._root, None)
            made.description = speaking.prompt and speaking.prompt.description
            return made

        def open_runtime(self, **_: Any) -> None: ...

        def components(self) -> None: ...

        def save(self) -> None: ...

        def logits(self, text: str, tokens: Tokens) -> Any:
            letters = torch.tensor([ord(letter) % 64 for letter in self.description])
            self.root().get_submodule("voice")(nn.functional.one_hot(letters, 64).float())
            return super().logits(text, tokens)

    heard = _objective("voice", encodes="description")
    datasets = _datasets(Described(_root(), (heard, _objective("silent", "kl"))))
    assert [dataset.objective.name for dataset in datasets] == ["voice", "silent"]
    assert [call.arguments[0].shape[0] for call in datasets[0].train] == [4, 6, 4]
