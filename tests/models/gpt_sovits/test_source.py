"""A spec names upstream's configuration, its two files in either order, or an artifact."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.errors import ModelError
from tts_compress.models.base import Speaking
from tts_compress.models.gpt_sovits import GPT_SOVITS
from tts_compress.models.gpt_sovits.source import GptSovitsSource, find_source

pytest.importorskip("torch")
yaml = pytest.importorskip("yaml")


if TYPE_CHECKING:
    from tts_compress.models.gpt_sovits.model import GptSovitsModel


_FOLDER = Path("GPT_SoVITS/pretrained_models")
_NETWORKS = ("chinese-roberta-wwm-ext-large", "chinese-hubert-base")
_BIGVGAN = "models--nvidia--bigvgan_v2_24khz_100band_256x"
_SPEAKER = "sv/pretrained_eres2netv2w24s4ep4.ckpt"


def _official(place: str) -> GptSovitsSource:
    source = find_source(place)
    assert source.settings is None
    return source


def _touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a mock clone with the published files, named by the environment."""
    root = tmp_path / "clone"
    for marker in GPT_SOVITS.markers:
        _touch(root / marker)
    for name in _NETWORKS:
        for file in ("config.json", "pytorch_model.bin", "vocab.txt", ".gitattributes"):
            _touch(root / _FOLDER / name / file)
    for file in ("config.json", "bigvgan_generator.pt"):
        _touch(root / _FOLDER / _BIGVGAN / file)
    for name in ("gsv-v4-pretrained/vocoder.pth", _SPEAKER):
        _touch(root / _FOLDER / name)
    monkeypatch.setenv(GPT_SOVITS.variable, str(root))
    return root


@pytest.fixture
def without_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name no clone."""
    monkeypatch.delenv(GPT_SOVITS.variable, raising=False)


def _config(path: Path, section: object, name: str = "custom") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({name: section}), encoding="utf-8")
    return path


@pytest.mark.usefixtures("without_clone")
def test_two_files_in_either_order(write_model: Callable[..., tuple[Path, Path]]) -> None:
    """Nothing of upstream's is needed for that."""
    t2s, sovits = write_model("v2Pro")
    for location in (f"{t2s},{sovits}", f"{sovits},{t2s}"):
        source = _official(location)
        assert source.named == {"t2s": t2s, "vits": sovits}
        assert source.version == "v2Pro"


@pytest.mark.usefixtures("without_clone")
def test_paths_with_commas(write_model: Callable[..., tuple[Path, Path]], tmp_path: Path) -> None:
    t2s, sovits = write_model()
    folder = tmp_path / "Voices, mine"
    folder.mkdir()
    moved = [shutil.copy(path, folder / f"a,{path.name}") for path in (t2s, sovits)]
    source = _official(f"{moved[0]},{moved[1]}")
    assert source.named["vits"] == moved[1]


@pytest.mark.parametrize(
    ("version", "extra"),
    [
        ("v2", []),
        ("v2Pro", [_SPEAKER]),
        ("v3", [f"{_BIGVGAN}/bigvgan_generator.pt"]),
        ("v4", ["gsv-v4-pretrained/vocoder.pth"]),
    ],
)
def test_files_are_all_that_it_speaks_with(
    write_model: Callable[..., tuple[Path, Path]], clone: Path, version: str, extra: list[str]
) -> None:
    t2s, sovits = write_model(version)
    files = find_source(f"{t2s},{sovits}").files()
    networks = [clone / _FOLDER / name / "pytorch_model.bin" for name in _NETWORKS]
    assert set(files.weights) == {t2s, sovits, *networks, *(clone / _FOLDER / e for e in extra)}
    names = {path.name for path in files.settings}
    assert names == {"config.json", "vocab.txt"}


@pytest.mark.parametrize(
    ("version", "missing", "message"),
    [
        ("v2", _NETWORKS[0], f"no '.*{_NETWORKS[0]}'; upstream publishes it at https://"),
        ("v2", f"{_NETWORKS[1]}/config.json", f"{_NETWORKS[1]}' holds no config.json"),
        ("v2", f"{_NETWORKS[1]}/pytorch_model.bin", "no model.safetensors or pytorch_model.bin"),
        ("v2Pro", _SPEAKER, f"fetch '{_SPEAKER}' into {_FOLDER} of the clone"),
        ("v3", f"{_BIGVGAN}/bigvgan_generator.pt", "holds no .*bigvgan_generator.pt"),
        ("v4", "gsv-v4-pretrained/vocoder.pth", "vocoder.pth'; upstream publishes"),
    ],
)
def test_missing_companion_is_named(
    write_model: Callable[..., tuple[Path, Path]],
    clone: Path,
    version: str,
    missing: str,
    message: str,
) -> None:
    path = clone / _FOLDER / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    source = _official(",".join(map(str, write_model(version))))
    with pytest.raises(ModelError, match=message):
        source.files()


@pytest.mark.usefixtures("without_clone")
def test_without_clone_the_companions_are_asked_for(
    write_model: Callable[..., tuple[Path, Path]],
) -> None:
    source = _official(",".join(map(str, write_model())))
    with pytest.raises(ModelError, match=f"--checkout DIR .* {GPT_SOVITS.variable}"):
        source.files()


@pytest.mark.usefixtures("without_clone")
def test_files_that_do_not_fit_are_refused(
    write_model: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    t2s, sovits = write_model("v2")
    old = shutil.copy(t2s, tmp_path / "v2.ckpt")
    _, first = write_model("v1")
    with pytest.raises(ModelError, match="both T2S models; give one T2S model"):
        find_source(f"{t2s},{old}")
    with pytest.raises(ModelError, match="both no T2S models"):
        find_source(f"{sovits},{first}")
    with pytest.raises(ModelError, match=r"v2\.ckpt' is a T2S model of 732 symbols.* is v1"):
        find_source(f"{old},{first}")


@pytest.mark.usefixtures("without_clone")
@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("voice.ckpt", "'voice.ckpt' is no GPT-SoVITS model; give 'CONFIG.yaml', 'T2S.ckpt,SO"),
        ("", "'' holds no manifest.json; give"),
        ("a.ckpt,b.pth", r"cannot read 'a\.ckpt': No such file"),
        (",", r"cannot read '\.': Is a directory"),
        ("none.yaml", r"cannot read 'none\.yaml'"),
    ],
)
def test_locations_of_nothing_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message):
        find_source(location)


@pytest.mark.parametrize("place", ["beside", "in the clone", "in the named clone"])
def test_relative_names_are_found(
    write_model: Callable[..., tuple[Path, Path]],
    clone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    t2s, sovits = write_model()
    section = {"version": "v2", "device": "cuda", "is_half": True}
    section |= {"t2s_weights_path": "GPT_weights/a.ckpt", "vits_weights_path": str(sovits)}
    section |= {"bert_base_path": str(_FOLDER / _NETWORKS[0]), "cnhuhbert_base_path": ""}
    config = tmp_path / "mine" / "tts_infer.yaml"
    if place == "beside":
        _touch(tmp_path / "mine" / _FOLDER / _NETWORKS[0] / "config.json")
    elif place == "in the clone":
        config = clone / "GPT_SoVITS" / "configs" / "tts_infer.yaml"
        monkeypatch.delenv(GPT_SOVITS.variable)
    root = tmp_path / "mine" if place == "beside" else clone
    wanted = Path(shutil.copy(t2s, _touch(root / "GPT_weights" / "a.ckpt")))
    source = _official(str(_config(config, section)))
    assert (source.named["t2s"], source.named["vits"]) == (wanted, sovits)
    assert source.named["bert"] == root / _FOLDER / _NETWORKS[0]
    monkeypatch.setenv(GPT_SOVITS.variable, str(clone))
    assert source.networks()["hubert"] == clone / _FOLDER / _NETWORKS[1]


def test_published_weights_are_meant_where_none_are_named(
    write_model: Callable[..., tuple[Path, Path]], clone: Path, tmp_path: Path
) -> None:
    t2s, sovits = write_model("v2Pro")
    shutil.copy(t2s, clone / _FOLDER / "s1v3.ckpt")
    shutil.copy(sovits, _touch(clone / _FOLDER / "v2Pro" / "s2Gv2Pro.pth"))
    source = _official(str(_config(tmp_path / "a.yaml", {"version": "v2Pro"})))
    assert source.named["vits"] == clone / _FOLDER / "v2Pro" / "s2Gv2Pro.pth"
    source.files()
    wrong = _config(tmp_path / "b.yaml", {"version": "v3", "t2s_weights_path": None})
    with pytest.raises(ModelError, match=r"s2Gv3\.pth'; upstream publishes"):
        find_source(str(wrong))


_STATED = {"version": "v2", "t2s_weights_path": "a.ckpt", "vits_weights_path": "b.pth"}


@pytest.mark.usefixtures("without_clone")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", r"cannot read '.*a\.yaml': while parsing"),
        ("- a", "no section 'custom'; it is to be like upstream's"),
        ("v2: {}", "no section 'custom'"),
        ("custom: 3", "no section 'custom'"),
        ("custom: {version: v5}", "version is 'v5'; accepted are 'v1', 'v2'"),
        ("custom: {version: [v2]}", r"version is \['v2'\]"),
        (yaml.safe_dump({"custom": _STATED}), "names 'a.ckpt', which is not in .*--checkout DIR"),
        (yaml.safe_dump({"custom": _STATED | {"bert_base_path": 3}}), "bert_base_path is 3; give"),
        (yaml.safe_dump({"custom": _STATED | {"vits_weights_path": "a\0"}}), "give a path"),
        (yaml.safe_dump({"custom": _STATED | {"t2s_weights_path": "a" * 999}}), "not in"),
        (yaml.safe_dump({"custom": _STATED | {"t2s_weights_path": "~nobody/a"}}), "not in"),
        ("custom: !!python/object/apply:os.mkdir [executed]", "cannot read"),
        ("custom: {version: 2020-99-99}", "cannot read"),
        (b"\xff\xfe\xfa", "cannot read"),
    ],
)
def test_malformed_configuration_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelError, match=message):
        find_source(str(path))
    assert not (tmp_path / "executed").exists()


def test_voice_by_lora_needs_what_it_changes(
    tmp_path: Path,
    clone: Path,
    write_model: Callable[..., tuple[Path, Path]],
    save_official: Callable[..., Path],
    lora_tensors: Callable[..., dict[str, Any]],
    sovits_config: dict[str, Any],
) -> None:
    t2s, whole = write_model("v4")
    content = {"weight": lora_tensors(2), "config": sovits_config, "lora_rank": 2}
    changes = save_official(tmp_path / "lora.pth", content, b"04")
    source = _official(f"{t2s},{changes}")
    assert source.version == "v4"
    with pytest.raises(ModelError, match=r"gsv-v4-pretrained/s2Gv4\.pth' into"):
        source.files()
    base = Path(shutil.copy(whole, clone / _FOLDER / "gsv-v4-pretrained" / "s2Gv4.pth"))
    assert base in source.files().weights


def test_artifact(tmp_path: Path, settings_file: Callable[[Path], None]) -> None:
    folder = tmp_path / "artifact"
    folder.mkdir()
    for name in ("model.safetensors", "manifest.json", "tokenizer.json"):
        _touch(folder / name)
    with pytest.raises(ModelError, match=r"cannot read '.*settings\.json'"):
        find_source(str(folder))
    settings_file(folder / "settings.json")
    source = find_source(str(folder))
    assert source.settings is not None
    assert (source.version, source.directory) == ("v2Pro", folder)
    assert source.files().weights == (folder / "model.safetensors",)
    assert [p.name for p in source.files().settings] == ["settings.json", "tokenizer.json"]
    (folder / "settings.json").write_text("{}")
    with pytest.raises(ModelError, match=r"cannot read '.*settings\.json'"):
        find_source(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no model\.safetensors"):
        source.files()


@pytest.fixture
def open_model(write_model: Callable[..., tuple[Path, Path]]) -> Callable[..., GptSovitsModel]:
    """Return a function that opens a model by its two files, with options."""
    from tts_compress.models.gpt_sovits.model import GptSovitsModel

    def open_it(version: str, options: str = "") -> GptSovitsModel:
        t2s, sovits = write_model(version)
        return GptSovitsModel.open(f"{t2s},{sovits}{options}", "gpt-sovits:x")

    return open_it


@pytest.mark.parametrize(
    ("version", "options", "languages"),
    [
        ("v1", "", ("zh", "en", "ja")),
        ("v2", "", ("zh", "en", "ja", "ko", "yue")),
        ("v2Pro", "?top_k=5", ("zh", "en", "ja", "ko", "yue")),
        ("v2", "?text_lang=auto_yue", ("en", "ja", "ko", "yue")),
        ("v2", "?text_lang=en", ("en",)),
        ("v2", "?text_lang=all_zh", ("zh",)),
    ],
)
def test_languages_are_those_of_the_version_or_the_chosen_one(
    open_model: Callable[..., GptSovitsModel],
    version: str,
    options: str,
    languages: tuple[str, ...],
) -> None:
    model = open_model(version, options)
    assert model.speaking.languages == languages
    assert model.speaking.language == (languages[0] if len(languages) == 1 else None)


def test_a_language_is_chosen_as_upstreams_setting(
    open_model: Callable[..., GptSovitsModel],
) -> None:
    """One that was chosen before stays, also as a choice with other rules for foreign letters."""
    model = open_model("v2", "?top_k=5&prompt_lang=ja")
    chosen = model.speaking_as(Speaking(languages=("zh",)))
    assert (chosen.options.text_lang, chosen.options.top_k) == ("zh", 5)
    assert chosen.describe()["language"] == "zh"
    assert chosen.describe()["options"] == "prompt_lang ja, top_k 5"
    assert model.options.text_lang == "auto"
    assert (
        open_model("v2", "?text_lang=all_zh")
        .speaking_as(Speaking(languages=("zh",)))
        .options.text_lang
        == "all_zh"
    )
    for other, language in ((model, "de"), (chosen, "en"), (open_model("v1"), "ko")):
        with pytest.raises(ModelError, match=f"does not speak '{language}'; accepted: "):
            other.speaking_as(Speaking(languages=(language,)))
