"""Promises of every system in torch: a family's `TestX(FamilyPromises)` states its case alone."""

# ruff: noqa: D102  tests need no docstrings, in a class neither

import functools
import json
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.families.case import FamilyCase, Learning, SchemePromise
from tests.families.tiny import write_voice
from tests.measures import snr_db
from tests.suites import suite_text
from tts_compress import compress, load, read_report
from tts_compress.artifact import Manifest, read_manifest
from tts_compress.cli import main
from tts_compress.errors import ArtifactError, ModelError, TTSCompressWarning
from tts_compress.models.base import LanguageModel, LatentModel, TorchModel
from tts_compress.models.execution import Execution
from tts_compress.recipes.recipe import find_recipe, schemes_of

_ALGORITHMS = {"int8-qat", "int4-gptq", "int4-inc"}
"""Schemes that train, or choose codes by an algorithm, which has tests of its own."""


def compressed(model: Any, scheme: str, **options: Any) -> Any:
    """Compress without the warning that the processor lacks a type's arithmetic."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TTSCompressWarning)
        return compress(model, scheme, **options)


class FamilyPromises:
    """The tests; `case` is what a family states."""

    case: ClassVar[FamilyCase]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize by the case's schemes and stops."""
        case, learning = self.case, self.case.learning
        if "scheme" in metafunc.fixturenames:
            fast = ("int8", "fp16") if case.slow else tuple(case.schemes)
            slow = {name: [pytest.mark.slow] if name not in fast else [] for name in case.schemes}
            cases = [pytest.param(name, marks=marks) for name, marks in slow.items()]
            metafunc.parametrize("scheme", cases)
        if "trained_scheme" in metafunc.fixturenames:
            metafunc.parametrize("trained_scheme", learning.deployed if learning else [])
        if "stop" in metafunc.fixturenames:
            stops = learning.stops if learning else ()
            slow_stops = [pytest.mark.slow] if learning and learning.slow else []
            metafunc.parametrize("stop", [pytest.param(x, marks=slow_stops) for x in stops])

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, request: pytest.FixtureRequest) -> Any:
        """Return the original, as it is compared."""
        return cls.case.configured(request.getfixturevalue(cls.case.model))

    @pytest.fixture(scope="class")
    @classmethod
    def small(cls, model: Any) -> Any:
        """Return the model in INT8, in memory."""
        return compressed(model, "int8")

    @pytest.fixture(scope="class")
    @classmethod
    def artifact(cls, small: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Return that model's artifact; do not write into it."""
        folder: Path = small.save(tmp_path_factory.mktemp("artifact") / "int8")
        return folder

    @pytest.fixture(scope="class")
    @classmethod
    def said(cls, model: Any) -> Callable[[int | None], Any]:
        """Return a function that returns what the original says with a seed, spoken once."""
        return functools.cache(lambda seed: model.synthesize(cls.case.text, seed=seed).samples)

    def _read(self, folder: Path) -> Any:
        return self.case.configured(load(folder))

    def _said(self, model: Any, seed: int | None = 0) -> Any:
        return model.synthesize(self.case.text, seed=seed).samples

    @pytest.mark.slow
    def test_a_seed_repeats_what_is_spoken(
        self, model: Any, said: Callable[[int | None], Any]
    ) -> None:
        audio = model.synthesize(self.case.text, seed=0)
        assert isinstance(model, TorchModel)
        assert model.family == self.case.family
        assert audio.sample_rate == model.sample_rate
        assert (audio.samples.dtype, audio.samples.ndim) == (np.float32, 1)
        assert np.isfinite(audio.samples).all()
        assert np.abs(audio.samples).max() > 0.01
        np.testing.assert_array_equal(said(0), audio.samples)
        other = said(1)
        same = other.shape == audio.samples.shape and bool((other == audio.samples).all())
        assert same is not self.case.noisy

    @pytest.mark.slow
    def test_it_says_the_same_on_a_gpu(
        self,
        model: Any,
        said: Callable[[int | None], Any],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """And fails where one tensor stays behind; no GPU is needed."""
        from torch.nn import Parameter

        from tests.pretend import CudaTensor, called_layers, pretend_gpu

        expected, scores = said(0), self._answers(model, model)
        with pretend_gpu(monkeypatch):
            moved = model.on(Execution(device="cuda"))
            root = moved.root()
            held = [x for x in (*root.parameters(), *root.buffers()) if not x.is_meta]
            assert all(isinstance(x, CudaTensor) for x in held)
            with called_layers() as called:
                np.testing.assert_allclose(self._said(moved), expected, atol=1e-4)
            np.testing.assert_allclose(self._answers(moved, model), scores, atol=1e-3)
            moved.save(tmp_path / "saved")
            left = called[len(called) // 2]
            left.weight = Parameter(left.weight.held, requires_grad=False)
            with pytest.raises(ModelError, match="found at least two devices, cuda:0 and cpu"):
                self._said(moved)
        assert not any(isinstance(x, CudaTensor) for x in model.root().parameters())

    @pytest.mark.gpu
    @pytest.mark.parametrize("kind", ["fp32", "fp16", "int8"])
    def test_it_speaks_on_the_gpu_at_hand(self, model: Any, kind: str, tmp_path: Path) -> None:
        """As on the processor, but for the order of sums and what compression rounds."""
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("there is no NVIDIA GPU")
        there = model.on(Execution(device="cuda"))
        if kind != "fp32":
            saved = compressed(there, kind).save(tmp_path / kind)
            there = self.case.configured(load(saved, device="cuda"))
        before, after = self._said(model), self._said(there)
        assert np.isfinite(after).all()
        if isinstance(model, LanguageModel | LatentModel):
            before, after = self._answers(model, model), self._answers(there, model)
        elif kind != "fp32" and self.case.schemes[kind].snr_db is None:
            return  # tokens that it draws leave no sound to compare
        assert snr_db(before, after) > {"fp32": 60, "fp16": 20, "int8": 10}[kind]

    def _answers(self, model: Any, speaker: Any) -> Any:
        """Return what a language model answers to what a speaker of its kind said."""
        text = self.case.text
        if isinstance(model, LanguageModel):
            return model.logits(text, speaker.generate_tokens(text, seed=0))
        if isinstance(model, LatentModel):
            return model.read_latents(text, speaker.generate_latents(text, seed=0)).latents
        return np.zeros(0)

    def test_every_scheme_is_tried(self) -> None:
        missing = set(schemes_of(self.case.family)) - _ALGORITHMS - set(self.case.schemes)
        assert missing == self.case.untried

    def test_a_scheme_is_what_its_recipe_promises(
        self,
        request: pytest.FixtureRequest,
        model: Any,
        said: Callable[[int | None], Any],
        scheme: str,
        tmp_path: Path,
        compare_models: Callable[..., Any],
    ) -> None:
        """Saved, it speaks what was compressed, and its manifest counts what is there."""
        promise, is_shared = self.case.schemes[scheme], scheme == "int8"
        few: dict[str, Any] = {}
        if find_recipe(self.case.family, scheme).calibration is not None:
            write = request.getfixturevalue("write_texts")
            few["calibration"] = write([self.case.text, *self.case.texts])
        small = request.getfixturevalue("small") if is_shared else compressed(model, scheme, **few)
        spoken = [self._said(small, seed) for seed in self.case.seeds]
        if promise.snr_db is not None:
            for seed, samples in zip(self.case.seeds, spoken, strict=True):
                reference = said(seed)
                assert samples.shape == reference.shape
                assert promise.snr_db < snr_db(reference, samples) < 100
        if promise.agreement is not None:
            near = compare_models(model, small, self.case.texts)
            assert near.positions > 90
            assert near.agreement >= promise.agreement
            assert 0 < near.kl_nats < (promise.kl_nats or np.inf)
        saved = request.getfixturevalue("artifact") if is_shared else small.save(tmp_path / scheme)
        again = self._read(saved)
        for seed, samples in zip(self.case.seeds, spoken, strict=True):
            np.testing.assert_array_equal(self._said(again, seed), samples)
        self._check_manifest(model, small, again, promise)
        self.case.check(request, model, again, scheme)

    def _check_manifest(self, model: Any, small: Any, again: Any, promise: SchemePromise) -> None:
        manifest: Manifest = again.manifest
        before, after = (
            sum(path.stat().st_size for path in each.files().weights) for each in (model, again)
        )
        assert manifest.size_bytes == after < promise.share * before
        parts = [each.components() for each in (model, small, again)]
        assert parts[0].keys() == parts[1].keys() == parts[2].keys()
        sizes = [sum(part.size_bytes for part in each.values()) for each in parts]
        assert sizes[0] > sizes[1] == sizes[2]
        if promise.counts is None:
            kinds = [Counter(map(type, each.root().modules())) for each in (small, again)]
            assert kinds[0] == kinds[1]
            assert sum(manifest.counts.values()) == len(manifest.layers)
        else:
            in_floats = {"float16/none", "float32/none"}
            counts = {k: n for k, n in manifest.counts.items() if k.split()[1] not in in_floats}
            assert counts == promise.counts
            assert len(_compressed_layers(again.root())) == sum(promise.counts.values())

    def test_the_same_model_gives_the_same_bytes_and_stays_as_it_was(
        self, model: Any, said: Callable[[int | None], Any], artifact: Path, tmp_path: Path
    ) -> None:
        before = {name: tensor.clone() for name, tensor in model.root().state_dict().items()}
        spoken = said(0)
        second = compressed(model, "int8").save(tmp_path / "second")
        _check_same_files(artifact, second)
        if self.case.saved_again:
            _check_same_files(artifact, load(artifact).save(tmp_path / "third"))
        after = model.root().state_dict()
        assert list(after) == list(before)
        assert all(tensor.equal(before[name]) for name, tensor in after.items())
        np.testing.assert_array_equal(self._said(model), spoken)

    def test_an_artifact_needs_nothing_of_its_original(self, small: Any, artifact: Path) -> None:
        """And what is in memory alone has no files."""
        files = load(artifact).files()
        assert all(path.parent == artifact for path in (*files.weights, *files.settings))
        assert {*read_manifest(artifact).files, "manifest.json"} == {
            path.relative_to(artifact).as_posix() for path in artifact.rglob("*") if path.is_file()
        }
        for refused in (small.files, lambda: small.open_runtime(threads=1)):
            with pytest.raises(ModelError, match=r"call save\(\) first"):
                refused()

    def test_an_artifact_is_opened_without_fp32_weights(
        self, model: Any, artifact: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tts_compress.torch.layers import checkpoint

        seen: list[str] = []
        restore = checkpoint.restore_root

        def spy(root: Any, layers: Any, path: Path) -> Any:
            seen.extend(parameter.device.type for parameter in root.parameters())
            return restore(root, layers, path)

        monkeypatch.setattr(checkpoint, "restore_root", spy)
        root = load(artifact).root()  # type: ignore[attr-defined]
        assert set(seen) == {"meta"}
        tensors = [*root.named_parameters(), *root.named_buffers()]
        assert {tensor.device.type for _, tensor in tensors} == {"cpu"}
        for name, tensor in model.root().named_buffers():
            if self.case.computed(name):
                assert root.get_buffer(name).equal(tensor), name

    def test_an_altered_artifact_is_refused(self, artifact: Path, tmp_path: Path) -> None:
        copy = shutil.copytree(artifact, tmp_path / "copy")
        name = next(name for name in read_manifest(copy).files if "safetensors" not in name)
        with (copy / name).open("ab") as file:
            file.write(b" ")
        with pytest.raises(ArtifactError, match=f"'{name}' was altered"):
            load(copy)

    def test_an_original_is_saved_and_speaks_the_same(
        self, model: Any, said: Callable[[int | None], Any], tmp_path: Path
    ) -> None:
        if not self.case.saved:
            pytest.skip("it is written in upstream's own format, which has tests of its own")
        folder = model.save(tmp_path / "copy")
        assert {path.name for path in folder.iterdir()} == {*self.case.saved}
        saved: Any = load(f"{self.case.family}:{folder}")
        assert saved.manifest is None
        assert saved.options == model.options  # or it would be judged by other steps
        np.testing.assert_array_equal(self._said(saved), said(0))
        _check_same_files(folder, saved.save(tmp_path / "again"))
        with pytest.raises(ArtifactError, match="exists"):
            model.save(folder)

    def test_inspect_shows_every_components_share_of_the_time(
        self, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Also of a language model that is not called as a module."""
        told = self.case.commanded
        if not told.timed:
            pytest.skip("another system of the family is timed")
        arguments = [told.spec(request), "--json", "--time", *told.options(request)]
        assert main(["inspect", *arguments]) == 0
        found = json.loads(capsys.readouterr().out)
        shares = {part["name"]: part["time_share"] for part in found["components"]}
        assert sum(shares.values()) + found["other_time_share"] == pytest.approx(1)
        assert all(shares[name] > 0 for name in told.timed)

    @pytest.fixture(scope="class")
    @classmethod
    def learning(cls) -> Learning:
        """Return what a training brings; skip where it has tests of its own."""
        if cls.case.learning is None:
            pytest.skip("trained in tests of its own")
        return cls.case.learning

    @pytest.fixture(scope="class")
    @classmethod
    def teacher(cls, learning: Learning, request: pytest.FixtureRequest) -> Any:
        """Return the model that is trained."""
        return request.getfixturevalue(learning.model or cls.case.model)

    @pytest.fixture(scope="class")
    @classmethod
    def train(
        cls, teacher: Any, learning: Learning, train_on: Callable[..., Callable[..., Any]]
    ) -> Callable[..., Any]:
        """Return a function that trains the model, in four bits by default."""
        return train_on(teacher, learning.texts, **learning.changes)

    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls, train: Callable[..., Any]) -> Any:
        """Return the model in four bits, trained without a stop."""
        return train()

    def test_it_learns_four_bits_and_is_saved(
        self, trained: Any, learning: Learning, tmp_path: Path
    ) -> None:
        training = trained.manifest.training
        assert trained.manifest.calibration.set == "few"
        assert {name.rpartition("/")[0] for name in training.before} == set(learning.objectives)
        for term, left in learning.learned.items():
            assert training.after[term] < left * training.before[term], term
        spoken = trained.synthesize(learning.texts[0], seed=0).samples
        saved = trained.save(tmp_path / "trained")
        again: Any = load(saved)
        again = again.with_options(trained.options)
        assert read_manifest(saved).training == training
        np.testing.assert_array_equal(again.synthesize(learning.texts[0], seed=0).samples, spoken)

    def test_deployed_components_answer_as_their_students_do(
        self, teacher: Any, learning: Learning, deployed: Callable[..., Any], trained_scheme: str
    ) -> None:
        """Up to one activation a layer that lies between two codes and falls to either side.

        8 bits of N bell-shaped numbers leave 40 dB, and one that is a code off is a share of 12 / N
        of that noise: 60 dB of the 1,200 numbers and more that flow into most layers here. Random
        weights make more of it from layer to layer; four bits are multiplied in bfloat16.
        """
        assert isinstance(teacher, TorchModel)
        promise = learning.deployed[trained_scheme]
        found = deployed(teacher, trained_scheme, learning.texts[:2])
        assert tuple(found) == promise.objectives
        for agreement in found.values():
            assert agreement.snr_db > promise.snr_db, found
            assert agreement.layers_db > promise.layers_db, found
            assert agreement.loss_ratio == pytest.approx(1, abs=promise.loss), found

    def test_stopped_it_goes_on_with_the_same_bytes(
        self,
        trained: Any,
        learning: Learning,
        train: Callable[..., Any],
        resume: Callable[..., list[str]],
        stop: tuple[str, int],
    ) -> None:
        lines = resume(train, trained, stop)
        unheard = [line.split(":")[0] for line in lines if "rounded without" in line]
        assert unheard == [*learning.unheard]

    @pytest.mark.slow
    @pytest.mark.usefixtures("timed_once")
    def test_a_compressed_model_is_evaluated_from_the_command_line(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """It speaks by the suite's prompt, with the same noise on both sides."""
        pytest.importorskip("pocketsphinx")
        told = self.case.commanded
        if told.texts is None:
            pytest.skip("it is evaluated in tests of its own")
        suite, more = write_suite(tmp_path, told.texts, told.prompt), told.options(request)
        spec, small, out = told.spec(request), str(tmp_path / "int8"), tmp_path / "report"
        assert main(["quantize", spec, "--scheme", "int8", "--output", small, *more]) == 0
        arguments = [spec, small, "--suite", str(suite), "--output", str(out), "--wav", *more]
        assert main(["evaluate", *arguments]) == 0
        assert {"report.html", "report.json", "report.md", "wav"} <= {p.name for p in out.iterdir()}
        found = read_report(out)
        words = sum(len(text.split()) for text in told.texts)
        assert found.wer.counts.reference.reference_tokens == words
        assert found.wer.interval is None  # of two texts
        assert found.size.ratio > 1.5
        assert found.candidate.scheme == "int8"
        if found.teacher_forced is None:  # what differs is what compression did
            assert found.signal.same_timing == 1.0
            assert found.signal.snr_db is not None
            assert found.signal.snr_db > 15
        else:
            assert found.teacher_forced.texts == 2
            assert found.teacher_forced.positions > 100
            assert 0.8 < found.teacher_forced.agreement <= 1.0
            assert 0.0 < found.teacher_forced.kl_nats < 0.1
            assert "| Token agreement |" in (out / "report.md").read_text(encoding="utf-8")
        for side in (found.reference, found.candidate):
            assert told.settings.items() <= side.settings.items()
            assert told.language in (None, side.language)
        # Packages are imported before memory is measured: the model is what is counted.
        for memory in (found.memory.reference, found.memory.candidate):
            assert 0 < memory.peak_bytes - memory.idle_bytes < told.memory * memory.peak_bytes
        assert found.load is not None
        for opening in (found.load.reference, found.load.candidate):
            assert 0 < opening.open_ms < 30_000
        assert "not run alike" not in (out / "report.html").read_text(encoding="utf-8")

    @pytest.mark.snapshot
    def test_what_users_get(
        self, request: pytest.FixtureRequest, snapshot: Any, write_texts: Callable[..., str]
    ) -> None:
        """The output is compared before and after a refactoring."""
        texts = write_texts(["hello there", "one more"])
        snapshot.add_family(self.case.family, self.case.commanded.spec(request), texts)


def write_suite(folder: Path, spoken: Sequence[str], prompt: str = "") -> Path:
    """Write a suite of texts, with the higher buzz that its prompt may name as `voice.wav`."""
    write_voice(folder / "voice.wav", seconds=1.5, pitch_hz=190)
    path = folder / "suite.toml"
    path.write_text(
        suite_text(spoken, name="two-texts", seeds="[3]", more=prompt), encoding="utf-8"
    )
    return path


def _compressed_layers(root: Any) -> list[str]:
    """Return the names of compressed layers; some consist of another one, which is not counted."""
    from tts_compress.torch.layers.base import CompressedLayer

    found: list[str] = []
    for name, module in root.named_modules():
        inside = name.startswith(tuple(f"{outer}." for outer in found))
        if isinstance(module, CompressedLayer) and not inside:
            found.append(name)
    return found


def _check_same_files(one: Path, other: Path) -> None:
    names = [sorted(p.relative_to(f) for p in f.rglob("*") if p.is_file()) for f in (one, other)]
    assert names[0] == names[1]
    for name in names[0]:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
