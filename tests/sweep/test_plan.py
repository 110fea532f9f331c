"""Plans: what is accepted, and what each error says."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tts_compress
from tts_compress.environment import code_hash
from tts_compress.errors import TTSCompressError
from tts_compress.recipes.recipe import find_recipe
from tts_compress.sweep import work
from tts_compress.sweep.plan import Identity, Opened, OpenPlan, Unit, read_plan, share_of, units_of
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
    assert read_plan(write_plan(output="s3://bucket/x")).output == "s3://bucket/x"
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
        ({"gates": ["default", "default"]}, "`gates` has 'default' twice"),
        ({"recognizer": "ear"}, "ear"),
        ({"calibration": "mine"}, "no sets named 'mine'"),
        ({"schemes": ["small.toml"]}, "small.toml' states no `scheme`; give a recipe of one"),
        ({"shards": 0}, "shards"),
        ({"more": "unit_hours = inf"}, "unit_hours: .*less than or equal to 8760"),
        ({"more": "unit_hours = 1e300"}, "unit_hours: .*less than or equal to 8760"),
        ({"more": "unit_hours = nan"}, "unit_hours: "),
        ({"more": "[settings]\ntimeout_s = inf"}, "timeout_s"),
        ({"more": "[settings]\nrecognizer = 'none'"}, r"; write 'recognizer' above \[settings\],"),
        ({"threads": 2}, r"threads: .* not permitted; write 'threads' below \[settings\]"),
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


def _voice(name: str = "demo", fingerprint: str = "f") -> Opened:
    return Opened(spec=name, name=name, family="piper", fingerprint=fingerprint)


def _units(plan: OpenPlan, identity: Identity, voices: int = 1) -> list[Unit]:
    found = {
        unit.key: unit
        for number in range(voices)
        for scheme in plan.schemes
        for unit in units_of(plan, _voice(f"v{number}", f"f{number}"), scheme, identity)
    }
    return list(found.values())


def test_schemes_share_the_reference(write_plan: Callable[..., Path], identity: Identity) -> None:
    plan = read_plan(write_plan(schemes=["int8", "fp16"], shards=3))
    units = _units(plan, identity)
    counts = {kind: sum(unit.kind == kind for unit in units) for kind in {u.kind for u in units}}
    assert counts == {"compress": 2, "reference": 3, "candidate": 6, "time": 2, "report": 2}
    known: set[str] = set()
    for unit in units:
        assert known >= {*unit.needs}, "what a unit needs comes before it"
        known.add(unit.key)


def test_a_key_changes_with_what_decides_and_with_nothing_else(
    tmp_path: Path, write_plan: Callable[..., Path], identity: Identity
) -> None:
    def keys(plan: OpenPlan, own: Identity = identity, fingerprint: str = "f") -> dict[str, str]:
        units = units_of(plan, _voice(fingerprint=fingerprint), plan.schemes[0], own)
        return {unit.title: unit.key for unit in units}

    first = keys(read_plan(write_plan()))
    same = keys(read_plan(write_plan("other", gates=["strict"], unit_hours=2.0)))
    assert same == first, "neither the place nor the gates decide"
    voice = keys(read_plan(write_plan()), fingerprint="g")
    versions = keys(read_plan(write_plan()), identity.model_copy(update={"packages": {}}))
    for changed in (voice, versions):
        assert not {*changed.values()} & {*first.values()}
    scheme = keys(read_plan(write_plan(schemes=["fp16"])))
    assert scheme["reference demo, shard 0"] == first["reference demo, shard 0"]
    assert not {key for title, key in scheme.items() if "reference" not in title} & {
        *first.values()
    }
    seeds = keys(read_plan(write_plan(seeds=[7])))
    assert seeds["compress demo, int8"] == first["compress demo, int8"]
    assert seeds["time demo, int8"] == first["time demo, int8"]
    assert seeds["candidate demo, int8, shard 1"] != first["candidate demo, int8, shard 1"]
    ears = keys(read_plan(write_plan()), identity.model_copy(update={"recognizer": "other"}))
    assert ears["compress demo, int8"] == first["compress demo, int8"]
    assert ears["reference demo, shard 0"] != first["reference demo, shard 0"]
    compressed = {first["compress demo, int8"]}
    for text in ("One cat.", "Two cats."):  # which another content of the same file changes, too
        mine = f'version = 1\nname = "mine"\nlanguage = "en"\ntexts = ["{text}"]'
        (tmp_path / "mine.toml").write_text(mine, encoding="utf-8")
        plan = read_plan(write_plan(calibration="mine.toml"))
        compressed.add(keys(plan)["compress demo, int8"])
    assert len(compressed) == 3
    timing = keys(read_plan(write_plan(more="[settings]\ntiming_runs = 2")))
    changed_titles = {title for title, key in timing.items() if key != first[title]}
    assert changed_titles == {"time demo, int8", "report demo, int8"}


@pytest.mark.parametrize("count", [2, 5, 40])
def test_shares_hold_whole_chains(
    write_plan: Callable[..., Path], identity: Identity, count: int
) -> None:
    plan = read_plan(write_plan(schemes=["int8", "fp16", "bf16"], shards=3))
    units = _units(plan, identity, voices=2)
    shares = [share_of(units, number, count) for number in range(1, count + 1)]
    together = [unit.key for share in shares for unit in share]
    assert sorted(together) == sorted(unit.key for unit in units if unit.kind != "report")
    for share in shares:
        mine = {unit.key for unit in share}
        assert all({*unit.needs} <= mine for unit in share)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 5, "the longest chain is a model, three shards, its time"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of this package's code that is hashed in its place."""
    own, copy = Path(tts_compress.__file__).parent, tmp_path / "tts_compress"
    shutil.copytree(own, copy, ignore=shutil.ignore_patterns("__pycache__", "voices", "templates"))
    monkeypatch.setattr(tts_compress, "__file__", str(copy / "__init__.py"))
    return copy


def _edit(path: Path) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write("\n# another line\n")


@pytest.mark.slow
def test_units_are_done_again_for_code_that_decides_and_for_no_other(package: Path) -> None:
    """An edit of the model card had all voices compressed and evaluated again.

    One of what does the units changed nothing: the whole package of sweeps was left out.
    """

    def hash_now() -> str:
        return work._code.__wrapped__()

    first = hash_now()
    nothing = [
        *("report/card.py", "report/html.py", "search/search.py", "cli/quantize.py"),
        *("terminal.py", "inspection/check.py", "sweep/page.py", "sweep/run.py"),
    ]
    for name in nothing:
        _edit(package / name)
        assert hash_now() == first, name
    decisive = [
        *("sweep/work.py", "compression/__init__.py", "onnx/quantize/convert.py", "qat/task.py"),
        *("numerics/spectra.py", "evaluation/recognizers/whisper.py"),
        *("torch/convert.py", "models/parler/network.py", "numerics/weights.py", "audio.py"),
    ]
    for name in decisive:
        before = hash_now()
        _edit(package / name)
        assert hash_now() != before, name


def test_a_file_that_is_renamed_or_added_is_other_code(package: Path) -> None:
    first = code_hash("evaluation")
    metric = package / "evaluation" / "metrics" / "distortion.py"
    metric.rename(metric.with_name("another.py"))
    assert (second := code_hash("evaluation")) != first
    (package / "evaluation" / "recognizers" / "empty.py").touch()
    assert code_hash("evaluation") not in {first, second}
