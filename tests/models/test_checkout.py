"""Code from a user's clone: found, imported, and kept from what is not its own."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tts_compress.errors import MissingExtraError, ModelError
from tts_compress.families import Upstream
from tts_compress.models.checkout import Checkout, find_checkout, named

_FLUTE = Upstream(
    family="flute",
    name="Flute",
    repository="https://example.org/flute",
    commit="0123456789abcdef0123456789abcdef01234567",
    variable="TTS_COMPRESS_FLUTE",
    extra="flute",
    markers=("flute_code/text/__init__.py", "LICENCE"),
    paths=("flute_code", "."),
    modules=("flute_models", "flute_text"),
)
_HARP = Upstream(
    family="harp",
    name="Harp",
    repository="https://example.org/harp",
    commit="f" * 40,
    variable="TTS_COMPRESS_HARP",
    extra="harp",
    markers=("strings.py",),
    paths=(".",),
    modules=("flute_text", "strings"),
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the flute system; its modules have names that nothing else here has."""
    code = {
        "flute_code/text/__init__.py": "",
        "LICENCE": "",
        "flute_code/flute_models/__init__.py": """
            import sys, pathlib
            print("loading the flute")
            sys.path.append("/flute/extras")
            sys.argv.append("--flute")
            from flute_text import WORDS
            import flute_outside
            HERE = pathlib.Path.cwd()
            ARGUMENTS = list(sys.argv)
        """,
        "flute_code/flute_text.py": "WORDS = ['la']",
        "flute_outside.py": "",
        "flute_code/flute_models/broken.py": "import flute_text; flute_text.no_such_name",
        "flute_code/flute_models/needy.py": "import no_such_package.part",
        "flute_code/flute_models/old.py": "from flute_text import no_such_word",
        "flute_code/flute_models/incomplete.py": "import flute_text.part",
    }
    for name, text in code.items():
        path = tmp_path / "flute" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line.strip() for line in text.splitlines()))
    return tmp_path / "flute"


@pytest.fixture
def flute(clone: Path) -> Iterator[Checkout]:
    """The clone; what was imported from it is forgotten afterwards."""
    yield Checkout(upstream=_FLUTE, root=clone)
    for name in [name for name in sys.modules if name.startswith("flute_")]:
        del sys.modules[name]


def _state() -> tuple[Any, ...]:
    return Path.cwd(), list(sys.path), list(sys.argv), sys.stdout


def test_a_module_is_imported_from_the_clones_root_and_everything_given_back(
    flute: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _state()
    module = flute.load("flute_models")
    assert _state() == before
    assert flute.root == module.HERE
    assert module.WORDS == ["la"]
    assert [sys.argv[0], "--flute"] == module.ARGUMENTS
    assert flute.load("flute_models") is module
    assert capsys.readouterr() == ("", "")


def test_everything_is_given_back_when_the_systems_code_fails(flute: Checkout) -> None:
    before = _state()
    with suppress(ZeroDivisionError), flute.running():
        sys.path.insert(0, "/elsewhere")
        os.chdir("/")
        _ = 1 / 0
    assert _state() == before
    with pytest.raises(ModelError):
        flute.load("flute_models.broken")
    assert _state() == before


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("broken", "'flute_models.broken' fails with AttributeError.*no_such_name"),
        ("old", "'flute_models.old' fails with ImportError.*no_such_word"),
        ("incomplete", "has no module 'flute_text.part'"),
        ("missing", "has no module 'flute_models.missing'"),
    ],
)
def test_code_of_another_commit_is_an_error_that_names_the_right_one(
    flute: Checkout, module: str, says: str
) -> None:
    with pytest.raises(ModelError, match=f"'{flute.root}' .*{says}.*Flute at commit 0123456789,"):
        flute.load(f"flute_models.{module}")


def test_a_package_that_the_clone_needs_is_named_with_the_extra_that_brings_it(
    flute: Checkout,
) -> None:
    with pytest.raises(MissingExtraError, match=r"'no_such_package'.*tts-compress\[flute\]"):
        flute.load("flute_models.needy")


def test_a_second_system_with_a_module_of_the_same_name_is_refused(
    flute: Checkout, tmp_path: Path
) -> None:
    harp = tmp_path / "harp"
    harp.mkdir()
    (harp / "strings.py").write_text("import flute_text")
    (harp / "flute_text.py").touch()
    flute.load("flute_models")
    with pytest.raises(ModelError) as refused:
        Checkout(upstream=_HARP, root=harp).load("strings")
    assert str(refused.value) == (
        "Harp cannot be loaded here: its module 'flute_text' goes by the name of one that was "
        f"imported from '{flute.root / 'flute_code'}'; one process runs one such system, use "
        "another process"
    )
    assert "strings" not in sys.modules
    twin = Checkout(upstream=_FLUTE, root=harp)
    with pytest.raises(ModelError, match="Flute cannot be loaded here"):
        twin.load("flute_models")  # another clone of the same system


def _name(monkeypatch: pytest.MonkeyPatch, value: str | Path) -> None:
    monkeypatch.setenv(_FLUTE.variable, str(value))


def test_the_clone_that_the_environment_names_is_found(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone.parent)
    monkeypatch.setenv("HOME", str(clone.parent))
    (clone.parent / "link").symlink_to(clone)
    for way in (clone, "flute", "~/flute", "link", "flute/../flute/"):
        _name(monkeypatch, way)
        assert find_checkout(_FLUTE) == Checkout(upstream=_FLUTE, root=clone.resolve())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda _: "", "Flute runs from a clone of its repository"),
        (lambda clone: clone / "nowhere", "nowhere' is no clone of Flute"),
        (lambda clone: clone / "LICENCE", "LICENCE' is no clone of Flute"),
        (lambda clone: clone / "flute_code", "it has no flute_code/text/__init__.py"),
        (lambda _: "~no_such_user_here/flute", "is no clone of Flute"),
        (lambda _: "x" * 5000, "is no clone of Flute"),
    ],
    ids=["unnamed", "missing", "a file", "a folder in it", "no user", "too long"],
)
def test_what_is_no_clone_is_an_error_that_says_how_to_get_one(
    make: Callable[[Path], str | Path], says: str, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _name(monkeypatch, make(clone))
    with pytest.raises(ModelError, match=says) as refused:
        find_checkout(_FLUTE)
    how = "clone https://example.org/flute at commit 0123456789 and name it by --checkout DIR or "
    assert str(refused.value).endswith(f"{how}the environment variable TTS_COMPRESS_FLUTE")


def test_a_clone_is_recognised_by_what_only_it_has(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strings.py").touch()
    known = "tts_compress.models.checkout.known_upstreams"
    monkeypatch.setattr(known, lambda: (_FLUTE, _HARP))
    for folder, expected in ((clone, _FLUTE), (tmp_path, _HARP)):
        with named(folder) as found:
            assert found is expected
    (clone / "LICENCE").unlink()
    with (
        pytest.raises(ModelError, match=r"no clone of Flute or Harp \(Flute has flute_code/"),
        named(clone),
    ):
        pass


def test_a_name_for_a_block_is_taken_back_also_after_an_error(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tts_compress.models.checkout.known_upstreams", lambda: (_FLUTE,))
    monkeypatch.delenv(_FLUTE.variable, raising=False)
    with suppress(ZeroDivisionError), named(clone) as upstream:
        assert upstream is _FLUTE
        assert find_checkout(_FLUTE).root == clone.resolve()
        _ = 1 / 0
    assert _FLUTE.variable not in os.environ


_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({".git/HEAD": _COMMIT}, _COMMIT),
        ({".git/HEAD": "ref: refs/heads/main", ".git/refs/heads/main": _COMMIT}, _COMMIT),
        (
            {
                ".git/HEAD": "ref: refs/heads/main",
                ".git/packed-refs": f"# pack-refs\n{'1' * 40} refs/heads/not-main\n"
                f"{_COMMIT} refs/heads/main\n",
            },
            _COMMIT,
        ),
        ({".git": "gitdir: store", "store/HEAD": _COMMIT}, _COMMIT),
        (
            {
                ".git": "gitdir: store/worktrees/w",
                "store/worktrees/w/HEAD": "ref: refs/heads/w",
                "store/worktrees/w/commondir": "../..",
                "store/refs/heads/w": _COMMIT,
            },
            _COMMIT,
        ),
        ({".git/HEAD": "ref: refs/heads/unborn"}, None),
        ({".git/HEAD": "ref: refs/heads/unborn", ".git/packed-refs": "# pack-refs"}, None),
        ({}, None),
    ],
    ids=["detached", "loose", "packed", "worktree", "its branch", "unborn", "no ref", "none"],
)
def test_the_commit_is_read_from_gits_own_files(
    files: dict[str, str], found: str | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert Checkout(upstream=_FLUTE, root=tmp_path).commit == found
