"""The methods that systems in torch inherit, on a system of a single layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from tts_compress.artifact import Manifest, Source
from tts_compress.audio import Audio
from tts_compress.errors import ArtifactError, MissingExtraError, ModelError
from tts_compress.models.base import ModelFiles, Prompt, TorchModel
from tts_compress.models.options import Options
from tts_compress.models.torch_model import (
    WEIGHTS,
    Table,
    TorchFamilyModel,
    find_components,
    find_manifest,
    restore_weights,
)

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from tts_compress.progress import Silent  # noqa: E402
from tts_compress.recipes.recipe import find_recipe  # noqa: E402
from tts_compress.torch.convert import convert  # noqa: E402
from tts_compress.torch.layers.checkpoint import write_root  # noqa: E402

if TYPE_CHECKING:
    from torch import nn

    from tts_compress.artifact import LayerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(Options):
    limits: ClassVar = {"samples": (1, 100)}

    samples: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    directory: Path
    options: _Options
    prompt: Prompt

    def files(self) -> ModelFiles:
        return ModelFiles(weights=(self.directory / WEIGHTS,))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    root: nn.Module
    name: str = "upstream's object"

    def with_root(self, root: nn.Module) -> _Loaded:
        return replace(self, root=root)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speech:
    root: nn.Module
    options: _Options

    def speak(self, text: str) -> Audio:
        noise = torch.randn(self.options.samples, 2)
        with torch.no_grad():
            samples = self.root.get_submodule("layer")(noise + len(text)).flatten()
        return Audio(samples=samples.numpy().astype(np.float32), sample_rate=8000)


def _find(place: str) -> _Source:
    prompt = Prompt(description="calmly")
    return _Source(directory=Path(place), options=_Options(), prompt=prompt)


def _read(source: _Source, layers: Sequence[LayerRecord]) -> _Loaded:
    return _Loaded(root=restore_weights(_root(9), layers, source.directory / WEIGHTS).eval())


class _Toy(TorchFamilyModel[_Source, _Options, _Loaded]):
    family = "toy"
    example = "samples=3"
    find = _find
    read = _read
    check_recording: ClassVar = lambda _: None
    roles: ClassVar = {"layer": "all there is", "absent": "in other versions"}
    sample_rate = 8000

    def describe(self) -> Mapping[str, Any]:
        return {"of": self.loaded.name}

    def _speech(self) -> _Speech:
        if self.prompt.description is None:
            raise ModelError("nobody said how")
        return self._prepared

    @cached_property
    def _prepared(self) -> _Speech:
        torch.randn(1)  # as some upstream code does, the first time
        return _Speech(root=self.root(), options=self.options)

    def _write(self, directory: Path) -> None:
        (directory / "how.txt").write_text(str(self.prompt.description))


def _root(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    root: nn.Module = torch.nn.ModuleDict({"layer": torch.nn.Linear(2, 1)}).eval()
    return root


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the folders that toys were read from so far."""
    folders: list[Path] = []

    def read(source: _Source, layers: Sequence[LayerRecord]) -> _Loaded:
        folders.append(source.directory)
        return _read(source, layers)

    monkeypatch.setattr(_Toy, "read", read)
    return folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "toy"
    folder.mkdir()
    write_root(_root(), folder / WEIGHTS)
    return folder


@pytest.fixture
def toy(folder: Path, reads: list[Path]) -> _Toy:
    del reads  # counted from the start
    return _Toy.open(str(folder), "toy:it")


@pytest.fixture
def manifest() -> Manifest:
    return Manifest(
        family="toy",
        scheme="fp16",
        source=Source(spec="toy:it", sha256="0" * 64, size_bytes=1),
        recipe={},
        layers=(),
        counts={},
        calibration=None,
        seed=0,
        environment={},
    )


@pytest.mark.parametrize("scheme", ["", "int8-weight-only", "bf16"])
def test_a_weight_that_layers_share_is_counted_once(scheme: str, tmp_path: Path) -> None:
    """Components were said to have twice the weights that their file holds."""
    tied = torch.nn.ModuleList([torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64, bias=False)])
    tied[1].weight = tied[0].weight
    root: nn.Module = torch.nn.ModuleDict({"tied": tied})
    layers: tuple[LayerRecord, ...] = ()
    if scheme:
        done = convert(root, find_recipe("module", scheme), None, progress=Silent())
        root, layers = done.root, done.layers
    write_root(root, tmp_path / WEIGHTS, layers)
    held = safetensors.load_file(tmp_path / WEIGHTS)
    component = find_components(root, {"tied": "head"}, layers)["tied"]
    assert component.parameters == 64 * 32
    assert component.size_bytes == sum(tensor.nbytes for tensor in held.values())
    assert component.operators == {"Embedding": 1, "Linear": 1}


def test_what_is_read_is_read_once_and_shared(toy: _Toy, reads: list[Path]) -> None:
    shorter = toy.with_options(_Options(samples=3))
    assert not reads
    assert isinstance(toy, TorchModel)
    assert list(toy.components()) == ["layer"]
    assert toy.components()["layer"].parameters == 2
    assert shorter.root() is toy.root()
    assert len(reads) == 1
    assert (len(toy.synthesize("a", seed=0).samples), shorter.options.samples) == (8, 3)
    assert len(shorter.synthesize("a", seed=0).samples) == 3


def test_a_text_does_not_stay_with_another_recording(toy: _Toy) -> None:
    first, second = Path("first.wav"), Path("second.wav")
    before = toy.with_prompt(Prompt(audio=first, text="one two."))
    assert before.with_prompt(Prompt()).prompt == Prompt(audio=first, text="one two.")
    assert before.with_prompt(Prompt(audio=second)).prompt == Prompt(audio=second)
    said = before.with_prompt(Prompt(text=" three. ")).prompt
    assert said == Prompt(audio=first, text="three.")
    both = Prompt(audio=second, text="three.")
    assert before.with_prompt(both).prompt == both
    assert before.with_prompt(Prompt(text=" ")).prompt == Prompt(audio=first)


def test_options_follow_the_place(folder: Path) -> None:
    assert _Toy.open(f"{folder}?samples=5", "x").options == _Options(samples=5)
    with pytest.raises(ModelError, match="samples=3"):
        _Toy.open(f"{folder}?samples", "x")
    with pytest.raises(ModelError, match="'the spec' states 'speed'"):
        _Toy.open(f"{folder}?speed=5", "the spec")


def test_tables_that_are_as_computed_are_not_stored() -> None:
    module = torch.nn.Module()
    module.register_buffer("table", torch.ones(3))
    module.register_buffer("changed", torch.ones(3))
    module.register_buffer("unused", torch.ones(3))
    computed = {"table": 1, "changed": 2, "unused": 0}
    for name, value in computed.items():
        Table(
            path="",
            module=module,
            name=name,
            computed=torch.full((3,), float(value)),
            is_used=name != "unused",
        ).drop()
    assert set(module.state_dict()) == {"changed"}
    assert module.table.equal(torch.ones(3))
    assert not module.unused.any()


def test_what_cannot_be_read_is_tried_again(toy: _Toy) -> None:
    path = toy.files().weights[0]
    path.rename(path.with_name("moved"))
    for _ in range(2):
        with pytest.raises(Exception, match=WEIGHTS):
            toy.root()
    path.with_name("moved").rename(path)
    assert toy.describe() == {"of": "upstream's object"}


def test_what_is_missing_to_read_it_is_named(toy: _Toy) -> None:
    def read() -> Any:
        raise ModuleNotFoundError("No module named 'yaml'", name="yaml")

    model = replace(toy, load=read)
    object.__setattr__(model, "family", "f5-tts")
    with pytest.raises(MissingExtraError, match=r"'yaml' is not .*tts-compress\[f5\]"):
        model.components()


@pytest.mark.usefixtures("one_thread")
def test_the_runtime_speaks_by_the_options_on_the_threads(toy: _Toy) -> None:
    runtime = toy.with_options(_Options(samples=5)).open_runtime(threads=2)
    assert torch.get_num_threads() == 2
    assert len(runtime.speak("a").samples) == 5
    with pytest.raises(ModelError, match="nobody said how"):
        replace(toy, prompt=Prompt()).open_runtime(threads=1)


def test_other_modules_have_no_file_until_they_are_saved(
    toy: _Toy, manifest: Manifest, tmp_path: Path
) -> None:
    before = toy.synthesize("a", seed=0).samples
    changed = toy.with_root(_root(5), manifest)
    assert changed.with_options(_Options()).manifest is manifest
    for refused in (changed.files, lambda: changed.open_runtime(threads=1)):
        with pytest.raises(ModelError, match="'toy:it' has no file yet; call save"):
            refused()
    np.testing.assert_array_equal(toy.synthesize("a", seed=0).samples, before)
    assert toy.files().weights[0].is_file()

    saved = changed.save(tmp_path / "saved")
    found = find_manifest(saved, "toy")
    assert found is not None
    assert set(found.files) == {WEIGHTS, "how.txt"}
    assert found.size_bytes == (saved / WEIGHTS).stat().st_size
    again = _Toy.open(str(saved), "again", found)
    np.testing.assert_array_equal(
        again.synthesize("a", seed=0).samples, changed.synthesize("a", seed=0).samples
    )
    assert not np.array_equal(again.synthesize("a", seed=0).samples, before)


def test_saving_is_all_or_nothing(toy: _Toy, tmp_path: Path) -> None:
    saved = toy.save(str(tmp_path / "saved"))
    assert {path.name for path in saved.iterdir()} == {WEIGHTS, "how.txt"}
    with pytest.raises(ArtifactError, match="exists; use --force"):
        toy.save(saved)


def test_what_cannot_be_read_is_not_said_to_be_unwritable(toy: _Toy, tmp_path: Path) -> None:
    def read() -> _Loaded:
        raise FileNotFoundError("no lexicon")

    broken: Any = read
    with pytest.raises(FileNotFoundError, match="no lexicon"):
        replace(toy, load=broken).save(tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_a_manifest_is_of_the_family(toy: _Toy, manifest: Manifest, tmp_path: Path) -> None:
    assert find_manifest(tmp_path, "toy") is None
    saved = toy.with_root(toy.root(), manifest).save(tmp_path / "saved")
    with pytest.raises(ModelError, match="is an artifact of family 'toy'"):
        find_manifest(saved, "f5-tts")
    (saved / "how.txt").write_text("loudly")
    with pytest.raises(ArtifactError, match=r"'how\.txt' was altered"):
        find_manifest(saved, "toy")
