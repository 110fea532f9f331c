"""Plans: what is accepted, and what each error says."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tts_compress.errors import TTSCompressError
from tts_compress.recipes.recipe import find_recipe
from tts_compress.sweep.plan import read_plan
from tts_compress.sweep.run import name_voices, parse_share


def test_paths_start_from_the_plans_folder(
    tmp_path: Path, write_plan: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b.onnx", "a.onnx"):
        (tmp_path / name).touch()
    monkeypatch.chdir("/")
    plan = read_plan(write_plan(voices=["demo", "*.onnx"], schemes=["int8", "fp16"]))
    assert plan.voices == ("demo", f"{tmp_path}/a.onnx", f"{tmp_path}/b.onnx")
    assert plan.output == f"{tmp_path}/plan-out"
    assert plan.suite.name == "small"
    assert [scheme.name for scheme in plan.schemes] == ["int8", "fp16"]


def test_a_recipe_is_a_scheme_of_its_own_name(
    tmp_path: Path, write_plan: Callable[..., Path]
) -> None:
    text = 'version = 1\nfamily = "piper"\nscheme = "fp16"\nsummary = "s"\n'
    text += '[[component]]\nmatch = "*"\nweights = "float16"\n'
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    (scheme,) = read_plan(write_plan(schemes=["mine.toml"])).schemes
    assert (scheme.name, scheme.scheme) == ("mine", "fp16")
    assert find_recipe("piper", scheme.scheme, scheme.recipe).summary == "s"


def test_shards_are_the_suites_texts_each_once(write_plan: Callable[..., Path]) -> None:
    plan = read_plan(write_plan(shards=2))
    assert [list(plan.texts_of(shard)) for shard in range(2)] == [[0, 2], [1]]
    assert read_plan(write_plan(shards=9)).shards == 3, "no shard is empty"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"voices": ["*.onnx"]}, "no file matches"),
        ({"voices": []}, "voices"),
        ({"voices": ["demo", "demo"]}, "`voices` has 'demo' twice"),
        ({"schemes": ["int8", "squash"]}, "unknown scheme 'squash'"),
        ({"schemes": ["none.toml"]}, "no file"),
        ({"suite": "none"}, "no suites named 'none'"),
        ({"gates": ["none"]}, "no gates named 'none'"),
        ({"gates": ["regression"]}, "a sweep has none"),
        ({"recognizer": "ear"}, "ear"),
        ({"shards": 0}, "shards"),
        ({"more": "unit_hours = inf"}, "unit_hours: .*less than or equal to 8760"),
        ({"more": "unit_hours = 1e300"}, "unit_hours: .*less than or equal to 8760"),
        ({"more": "unit_hours = nan"}, "unit_hours: "),
        ({"more": "[settings]\ntimeout_s = inf"}, "timeout_s"),
        ({"output": "a\0b"}, r"output: .*'a.x00b' is no folder"),
        ({"output": ""}, "output: .*is no folder"),
        ({"sheme": 1}, "sheme"),
        ({"more": "[environments.nobody]\npython = 'p'"}, "no family 'nobody'"),
    ],
)
def test_a_wrong_plan_is_refused(
    write_plan: Callable[..., Path], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(TTSCompressError, match=message) as caught:
        read_plan(write_plan(**values))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["0/4", "5/4", "3", "a/b", "-1/4", "1/0"])
def test_a_wrong_share_is_refused(text: str) -> None:
    with pytest.raises(TTSCompressError, match="NUMBER/COUNT"):
        parse_share(text)


def test_voices_of_one_name_are_told_apart() -> None:
    names = name_voices(("demo", "a/voice.onnx", "b/voice.onnx", "f5-tts:../x y"))
    assert list(names.values()) == ["demo", "voice", "voice-2", "x-y"]


def test_a_family_has_its_environment(
    tmp_path: Path, write_plan: Callable[..., Path], demo: Path
) -> None:
    """A voice that is named by its path, or by no family, had the one that runs the sweep."""
    for path in (demo, demo.with_name(f"{demo.name}.json")):
        shutil.copy(path, tmp_path / path.name.replace("demo", "mine"))
    voices = ["demo", "mine.onnx", "piper:mine.onnx", "f5-tts:x", "parler-tts:x", "none.onnx"]
    more = "[environments.f5-tts]\npython = 'p'\n[environments.parler-tts.runtime_env]\npip = ['x']"
    plan = read_plan(write_plan(voices=voices, more=more))
    assert plan.environment_of("f5-tts:x").python == "p"
    assert plan.environment_of("parler-tts:x").runtime_env == {"pip": ["x"]}
    assert plan.environment_of("demo").python is None
    again = type(plan).model_validate_json(plan.model_dump_json())
    assert again == plan, "as it goes to other processes"
    plan = read_plan(write_plan(voices=voices, more="[environments.piper]\npython = 'q'"))
    pythons = [plan.environment_of(voice).python for voice in plan.voices]
    assert pythons == ["q", "q", "q", None, None, "q"], "the last is no file: of Piper by its name"
