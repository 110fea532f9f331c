"""The example notebook runs, and shows what it says."""

from pathlib import Path
from typing import Any

import pytest

nbclient: Any = pytest.importorskip("nbclient")
nbformat: Any = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

_NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook" / "compress.ipynb"

_QUICK = """
from tts_compress import compression
from tts_compress.compression import workbench
from tts_compress.evaluation import run
from tts_compress.evaluation.suite import read_suite
from tts_compress.recipes.recipe import read_calibration_set

def few(name):
    chosen = read_calibration_set(name)
    return chosen.model_copy(update={"texts": chosen.texts[:4]})

def short(name):
    suite = read_suite(name)
    return suite.model_copy(update={"utterances": suite.utterances[:3]})

workbench.read_calibration_set, run.read_suite = few, short
compression.choose = lambda *_: None
"""
"""The first cell: four calibration texts, no choice of formats, a suite of three texts."""


def _shown(notebook: Any) -> str:
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    return "".join(out.get("data", {}).get("text/html", "") for out in outputs)


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_was_committed_with_it(tmp_path: Path) -> None:
    """Sounds, the table of what was done, and that of what it cost; times differ."""
    notebook = nbformat.read(_NOTEBOOK, as_version=4)
    kept = _shown(notebook)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(_QUICK))
    resources = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    found = _shown(notebook)
    assert (tmp_path / "demo-int8" / "manifest.json").is_file()
    for part in ("<audio controls", "Word error rate", "<td>int8</td>"):
        assert found.count(part) == kept.count(part) > 0
