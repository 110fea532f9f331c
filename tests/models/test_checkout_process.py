"""A clone that brings modules of the commonest names, in a process that it may spoil."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_NAMES = ("models", "utils", "text", "module", "tools", "tests")

_LOAD_CLONE = """
import json, sys
from pathlib import Path
from tts_compress.families import Upstream
from tts_compress.models.checkout import Checkout

names = {names!r}
upstream = Upstream(
    family="flute", name="Flute", repository="", commit="0" * 40, variable="FLUTE", extra="flute",
    markers=(), paths=(".",), modules=names,
)
checkout = Checkout(upstream=upstream, root=Path({clone!r}))
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder of packages that import each other by such names."""
    for name in _NAMES:
        (tmp_path / "clone" / name).mkdir(parents=True)
        (tmp_path / "clone" / name / "__init__.py").write_text("MINE = True\nimport utils\n")
    return tmp_path / "clone"


def _run(clone: Path, program: str) -> dict[str, object]:
    begin = _LOAD_CLONE.format(names=_NAMES, clone=str(clone))
    command = [sys.executable, "-P", "-c", begin + program]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, object] = json.loads(run.stdout)
    return found


@pytest.mark.slow
def test_our_own_modules_are_found_after_a_clones_and_theirs_are_not_ours(clone: Path) -> None:
    found = _run(
        clone,
        """
loaded = {name: checkout.load(name).__file__ for name in names}
import tts_compress.models
from tts_compress.models import load
from tts_compress.models.piper import PiperModel
voice = load("demo")
print(json.dumps({
    "loaded": loaded,
    "ours": tts_compress.models.__file__,
    "voice": isinstance(voice, PiperModel),
    "components": list(voice.components()),
    "left on the path": [part for part in sys.path if str(checkout.root) in part],
}))
""",
    )
    assert found["loaded"] == {name: str(clone / name / "__init__.py") for name in _NAMES}
    assert "tts_compress" in Path(str(found["ours"])).parts
    assert found["voice"] is True
    assert found["components"] == ["enc_p", "dp", "flow", "dec"]
    assert found["left on the path"] == []


def test_names_of_the_clone_mean_the_clones_wherever_the_process_started(
    clone: Path, tmp_path: Path
) -> None:
    """A `utils.py` in the user's folder stands before everything on an ordinary path."""
    (tmp_path / "utils.py").write_text("MINE = False")
    found = _run(
        clone,
        f"""
sys.path.insert(0, {str(tmp_path)!r})
checkout.load("text")
import utils
print(json.dumps({{"utils": utils.MINE, "first": sys.path[0]}}))
""",
    )
    assert found == {"utils": True, "first": str(tmp_path)}


def test_a_module_of_the_users_own_is_not_taken_for_the_clones(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "utils.py").touch()
    found = _run(
        clone,
        f"""
from tts_compress.errors import ModelError
sys.path.insert(0, {str(tmp_path)!r})
import utils
try:
    checkout.load("text")
except ModelError as error:
    print(json.dumps({{"error": str(error), "text": "text" in sys.modules}}))
""",
    )
    assert f"'utils' goes by the name of one that was imported from '{tmp_path}'" in str(
        found["error"]
    )
    assert found["text"] is False


_CLONES = ("TTS_COMPRESS_GPT_SOVITS", "TTS_COMPRESS_AMPHION")


@pytest.mark.skipif(
    any(not os.environ.get(name) for name in _CLONES), reason=f"needs {' and '.join(_CLONES)}"
)
def test_the_two_systems_refuse_each_others_process() -> None:
    program = """
import json
from tts_compress.errors import ModelError
from tts_compress.models.checkout import find_checkout, known_upstreams

first, second = known_upstreams()
find_checkout(first).load("text")  # which imports no packages
try:
    find_checkout(second).load("text")
except ModelError as error:
    print(json.dumps(str(error)))
"""
    command = [sys.executable, "-P", "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Amphion cannot be loaded here" in json.loads(run.stdout)
