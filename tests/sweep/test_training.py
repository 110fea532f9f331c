"""A unit that trains, in a process that is killed meanwhile."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tts_compress.recipes.recipe import find_recipe
from tts_compress.search.choices import recipe_toml

_PROGRAM = """
import json, sys
from functools import partial
from pathlib import Path
from tests.qat.toy import Recorder
from tts_compress.qat.options import TrainingOptions, TrainingRun
from tts_compress.sweep import work
from tts_compress.sweep.plan import Identity, Opened, read_plan, units_of

plan, kill_at = read_plan(Path(sys.argv[1])), int(sys.argv[2])
options = TrainingOptions(steps=5, checkpoint_every=2, batch_size=1, learning_rate=1e-5)
progress = Recorder(kill_at)
work.TrainingRun = partial(TrainingRun, options=options, progress=progress)
runner, (spec,) = work.UnitRunner(plan, Path(sys.argv[1]).parent), plan.voices
found = runner.describe([spec])
voice = Opened(spec=spec, name="tiny", **found["voices"][spec])
unit = units_of(plan, voice, plan.schemes[0], Identity(**found["identity"]))[0]
print(json.dumps([runner.run(unit.model_dump(mode="json")), progress.lines]))
"""


@pytest.mark.slow
def test_a_training_that_was_killed_goes_on_to_the_same_bytes(
    tmp_path: Path,
    tiny_path: Path,
    quick_recipe: Callable[[str], Path],
    write_plan: Callable[..., Path],
) -> None:
    """It began anew, though `qat` goes on: a sweep lost the hours of every training under way."""
    recipe = recipe_toml(find_recipe("piper", "int8-qat", quick_recipe("int8-qat")))
    (tmp_path / "quick.toml").write_text(recipe, encoding="utf-8")
    values = {"voices": [str(tiny_path)], "schemes": ["quick.toml"]}
    cache = tmp_path / "cache"
    variables = os.environ | {"XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}

    def run(plan: Path, kill_at: int) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", _PROGRAM, str(plan), str(kill_at)]
        return subprocess.run(command, check=False, capture_output=True, text=True, env=variables)

    killed = write_plan("killed", **values)
    assert run(killed, 3).returncode == -9
    assert len([*cache.glob("tts-compress/trainings/*")]) == 1
    archives = []
    for plan, told in ((killed, True), (write_plan("whole", **values), False)):
        ended = run(plan, 0)
        assert ended.returncode == 0, ended.stderr
        failed, lines = json.loads(ended.stdout.splitlines()[-1])
        assert failed == {}
        assert ("resuming after 2 updates" in lines) is told
        (archive,) = (tmp_path / f"{plan.stem}-out" / "units").iterdir()
        archives.append((archive.name, archive.read_bytes()))
    assert archives[0] == archives[1]
    assert not [*cache.glob("tts-compress/trainings/*")], "what is done needs no checkpoint"
