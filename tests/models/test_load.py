"""Model specs, and the models that they name."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import onnx
import pytest

from tts_compress import compress
from tts_compress.errors import ArtifactError, ModelError, TTSCompressWarning
from tts_compress.families import Family, accepted_specs, families
from tts_compress.models import load, open_model
from tts_compress.models.base import GraphModel, TTSModel
from tts_compress.models.checkout import known_upstreams


@pytest.fixture
def voice_copy(tmp_path: Path, tiny_path: Path) -> Path:
    """The tiny voice in a folder of its own, to be damaged."""
    return shutil.copytree(tiny_path.parent, tmp_path / "voice") / "tiny.onnx"


def test_voice_is_loaded_by_path_text_and_family(tiny_path: Path) -> None:
    for spec in (tiny_path, str(tiny_path), f"piper:{tiny_path}"):
        voice = load(spec)
        assert voice.spec == str(spec)
        assert voice.family in families()
        assert voice.sample_rate == 16000
        assert voice.manifest is None
        assert voice.files().weights[0] == tiny_path
        assert isinstance(voice, TTSModel)
        assert isinstance(voice, GraphModel)


def test_demo_is_loaded_by_name(demo: Path) -> None:
    assert load("demo").files().weights[0] == demo
    assert load("piper:demo").spec == "piper:demo"


@pytest.mark.slow
def test_artifact_is_loaded_by_folder_and_by_file(compressed: Callable[[str], Path]) -> None:
    folder = compressed("int8-weight-only")
    for spec in (folder, folder / "tiny.onnx"):
        found = load(spec)
        assert found.manifest is not None
        assert found.manifest.scheme == "int8-weight-only"
        assert found.manifest.size_bytes == found.files().weights[0].stat().st_size


def test_altered_artifact_is_refused(tmp_path: Path, compressed: Callable[[str], Path]) -> None:
    folder = shutil.copytree(compressed("int8-weight-only"), tmp_path / "copy")
    content = bytearray((folder / "tiny.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "tiny.onnx").write_bytes(content)
    for spec in (folder, folder / "tiny.onnx"):
        with pytest.raises(ArtifactError, match=r"'tiny\.onnx' was altered"):
            load(spec)


def test_other_voice_in_an_artifact_is_not_called_compressed(
    tmp_path: Path, compressed: Callable[[str], Path], tiny_path: Path
) -> None:
    folder = shutil.copytree(compressed("int8-weight-only"), tmp_path / "copy")
    for name in ("tiny.onnx", "tiny.onnx.json"):
        shutil.copy(tiny_path.with_name(name), folder / name.replace("tiny", "other"))
    assert load(folder / "other.onnx").manifest is None


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "nothing",
        "nothing.onnx",
        "nothing.ckpt",
        "piper:",
        "piper:nothing.onnx",
        "onnx:",
        "onnx:nothing.onnx",
        "onnx:nothing",
        "flute:voice.onnx",
        ".",
        "\0.onnx",
        "a" * 300,
        "a" * 300 + ".onnx",
        "a" * 300 + ".ckpt",
        "\ud800.onnx",
    ],
)
def test_spec_that_names_nothing_is_a_model_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for read in (load, open_model):
        with pytest.raises(ModelError):
            read(spec)


def test_graph_the_runtime_refuses_is_a_model_error(voice_copy: Path) -> None:
    model = onnx.load(voice_copy)
    next(node for node in model.graph.node if node.op_type == "Conv").op_type = "Cornv"
    onnx.save(model, voice_copy)
    with pytest.raises(ModelError, match="onnxruntime cannot open"):
        load(voice_copy).synthesize("Hello.", seed=0)


@pytest.fixture
def flute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family in torch whose function returns what it was given."""
    module = ModuleType("flute")
    vars(module).update(open_flute=lambda *given: given)
    monkeypatch.setitem(sys.modules, "flute", module)
    family = replace(families()["f5-tts"], opener="flute:open_flute")
    monkeypatch.setitem(families(), "f5-tts", family)


@pytest.mark.usefixtures("flute")
def test_a_family_in_torch_is_opened_by_its_own_function(
    tmp_path: Path, compressed: Callable[[str], Path]
) -> None:
    given: Any = open_model("f5-tts:one.ckpt,two:three.pth")
    assert given == ("one.ckpt,two:three.pth", "f5-tts:one.ckpt,two:three.pth", None)

    folder = shutil.copytree(compressed("int8-weight-only"), tmp_path / "copy")
    stated = json.loads((folder / "manifest.json").read_text("utf-8"))
    (folder / "manifest.json").write_text(json.dumps(stated | {"family": "f5-tts"}), "utf-8")
    for spec in (str(folder), f"f5-tts:{folder}"):
        given = open_model(spec)
        assert given[:2] == (str(folder), spec)
        assert given[2].family == "f5-tts"


@pytest.mark.parametrize("family", families().values(), ids=families())
def test_what_a_family_states_is_there(family: Family) -> None:
    assert callable(resolve_name(family.opener))
    assert family.location in accepted_specs(family.name)
    assert (family.location if family.suffixes else f"{family.name}:") in accepted_specs()


@pytest.mark.parametrize(
    ("given", "suggested"),
    [
        ("parler-tts/parler-tts-mini-v1", "'parler-tts:parler-tts/parler-tts-mini-v1'"),
        ("Parler-TTS", "'parler-tts:' and a directory or a hub's name"),
        ("Parler_TTS:DIR", "'parler-tts:DIR'"),
        ("SWivid/F5-TTS", "'f5-tts:' and .*F5TTS_v1_Base"),
        ("f5tts:DIR", "'f5-tts:DIR'"),
        ("piper", "'demo', a Piper voice's .onnx, a Piper training .ckpt"),
        ("piper-tts", "'demo', a Piper voice's .onnx, a Piper training .ckpt"),
        ("GPT SoVITS", "'gpt-sovits:' and CONFIG"),
    ],
)
def test_the_name_of_a_system_suggests_a_spec(given: str, suggested: str) -> None:
    """It was answered by all forms of all systems, 500 characters in a line."""
    with pytest.raises(ModelError, match=f"^no such model: '{given}'; give {suggested}") as caught:
        load(given)
    assert len(str(caught.value)) < 130


def test_a_folder_of_a_systems_name_suggests_a_spec(tmp_path: Path) -> None:
    folder = tmp_path / "parler-tts-mini-v1"
    folder.mkdir()
    with pytest.raises(ModelError, match=rf"no manifest\.json; give 'parler-tts:{folder}'"):
        load(folder)


@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("import late_library", "absent_library"),
        ("raise PackageNotFoundError('the distribution of it was not found')", "parler-tts"),
    ],
)
def test_what_an_import_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, missing: str
) -> None:
    """Libraries that import late wrap the reason in an error that names nothing."""
    (tmp_path / "late_library.py").write_text(
        "try:\n    import absent_library\n"
        "except ImportError as error:\n    raise ImportError('something is wrong') from error\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as caught:
        exec(statement, {"PackageNotFoundError": PackageNotFoundError})  # noqa: S102
    message = str(families()["parler-tts"].missing(caught.value))
    assert message.startswith(f"'{missing}' is not installed")
    assert "tts-compress[parler]" in message


def test_systems_that_run_from_a_clone_differ_in_every_mark() -> None:
    found = known_upstreams()
    assert [upstream.family for upstream in found] == ["gpt-sovits", "naturalspeech2"]
    for field in ("variable", "markers", "repository"):
        assert len({getattr(upstream, field) for upstream in found}) == len(found)


def test_families_that_share_a_suffix_are_told_apart_by_the_file_beside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, voice_copy: Path
) -> None:
    package = ModuleType("harp")
    vars(package).update(open_harp=lambda *given: given)
    monkeypatch.setitem(sys.modules, "harp", package)
    harp = Family(
        name="harp",
        opener="harp:open_harp",
        location="a harp's .onnx",
        suffixes=(".onnx",),
        beside=".tokens",
    )
    monkeypatch.setitem(families(), "harp", harp)
    for name in ("harp.onnx", "harp.onnx.tokens"):
        (tmp_path / name).touch()
    given: Any = open_model(tmp_path / "harp.onnx", bare=True)
    assert given == (str(tmp_path / "harp.onnx"), str(tmp_path / "harp.onnx"), None)
    assert open_model(voice_copy).family == "piper"
    with pytest.raises(ModelError, match=r"a harp's \.onnx, an artifact's directory"):
        load("voice.mp3")


class _Point:
    name = "harp"

    def __init__(self, found: Any) -> None:
        self._found = found

    def load(self) -> Any:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def test_families_of_other_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    harp = replace(families()["onnx"], name="harp")
    other = replace(harp, name="piper")
    points = [_Point(harp), _Point(other)]
    monkeypatch.setattr("tts_compress.families.entry_points", lambda group: points if group else [])
    found = families.__wrapped__()
    assert found["harp"] is harp
    assert found["piper"] is families()["piper"]
    points.append(_Point(ImportError("no harps here")))
    with pytest.warns(TTSCompressWarning, match="'harp' of another package .* no harps here"):
        assert families.__wrapped__().keys() == found.keys()


def test_our_own_state_themselves() -> None:
    torch = ["f5-tts", "gpt-sovits", "naturalspeech2", "parler-tts", "pocket-tts", "transformers"]
    ours = ["piper", "contract", *torch, "onnx"]
    assert list(families()) == ours


def test_a_name_that_no_manifest_can_hold_is_refused_before_the_work(tmp_path: Path) -> None:
    """In a locale of ASCII: the artifact was made, and its manifest could not be written."""
    path = tmp_path / "gr\udcc3\udcb6\udcc3\udc9fe.onnx"
    path.touch()
    with pytest.raises(ModelError, match=r"is not UTF-8 in this locale; rename it, or set LC_ALL"):
        open_model(f"onnx:{path}")


def test_what_is_no_spec_is_named_by_its_type() -> None:
    """A class or a state_dict was shown in full, as the name of a model."""
    given: Any = {"weight": [0.0] * 1000}
    with pytest.raises(ModelError, match=r"'dict' is no model; .* not its class or state_dict"):
        load(given)
    with pytest.raises(ModelError, match="'Path' is no model"):
        compress(Path)  # type: ignore[call-overload]
