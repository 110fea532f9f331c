"""README and docs: what can be run is run, in the order of each page.

Commands run in this process with suites of two texts, one seed and two calibration texts; each
text is timed once, and `int8` is the recipe as it is, without a choice of formats. Installations
and make targets are only parsed (`test_docs_commands.py`), and so are blocks with a comment that
says why. What two pages make by commands of one meaning is made once.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.docs_blocks import PAGES, ROOT, Block, read_blocks, simple_commands
from tts_compress import compression
from tts_compress.audio import write_wav
from tts_compress.cli import command_parser, main
from tts_compress.compression import workbench
from tts_compress.evaluation import run as evaluation_run
from tts_compress.evaluation.suite import Suite, read_suite
from tts_compress.models import load
from tts_compress.recipes.recipe import CalibrationSet, read_calibration_set

pytestmark = pytest.mark.slow
pytest.importorskip("piper")

_RUN = {"tts-compress"}
_MADE: dict[str, Path] = {}
"""Folders that commands have made, by what the commands mean."""

_VERDICTS = {"check", "gate"}
"""Commands whose exit code 1 is a result; two texts prove nothing, a busy machine times badly."""

_PAGES = [page for page in PAGES if any(b.language in {"sh", "python"} for b in read_blocks(page))]


def _is_run(block: Block) -> bool:
    if block.parsed_only is not None or block.language not in {"sh", "python"}:
        return False
    return block.language == "python" or any(map(_runs, simple_commands(block.text)))


def _runs(words: list[str]) -> bool:
    return words[0] in _RUN or words[:3] == ["python", "-m", "piper"]


def _short(name: str | Path) -> Suite:
    suite = read_suite(name)
    return suite.model_copy(update={"utterances": suite.utterances[:2], "seeds": (0,)})


def _few(name: str) -> CalibrationSet:
    found = read_calibration_set(name)
    return found.model_copy(update={"texts": found.texts[:2]})


def _vocoder(path: Path) -> None:
    """Write a graph with an input `mel` [1, 80, frames], convolutions of 32 channels, and sound."""
    draw = np.random.default_rng(0)
    shapes = ((32, 80, 3), (32, 32, 3), (1, 32, 3))
    weights = [
        numpy_helper.from_array(draw.standard_normal(s).astype(np.float32) / 16, f"w{i}")
        for i, s in enumerate(shapes)
    ]
    nodes = [
        helper.make_node(
            "Conv", [f"x{i}" if i else "mel", f"w{i}"], [f"x{i + 1}"], f"/{i}/Conv", pads=[1, 1]
        )
        for i in range(len(shapes))
    ]
    ends: tuple[tuple[str, list[str | int | None]], ...] = (
        ("mel", [1, 80, "frames"]),
        ("x3", [1, 1, "frames"]),
    )
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends]
    graph = helper.make_graph(nodes, "vocoder", sides[:1], sides[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.fixture(scope="module")
def ready(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what pages take for granted: a voice, its artifact, a graph, recordings."""
    folder = tmp_path_factory.mktemp("ready")
    for ending in ("", ".json"):
        shutil.copy(f"{demo}{ending}", folder / f"voice.onnx{ending}")
    with pytest.MonkeyPatch.context() as patch:
        _make_quick(patch)
        patch.chdir(folder)
        for model, name in (("voice.onnx", "voice-int8"), ("demo", "demo-int8")):
            _run(("tts-compress", "quantize", model, "--output", f"out/{name}"))
    _vocoder(folder / "vocoder.onnx")
    _recordings(folder)
    for index in range(16):
        mel = np.random.default_rng(index).standard_normal((80, 40)).astype(np.float32)
        np.save(folder / f"{index}.npy", mel)
    return folder


def _recordings(folder: Path) -> None:
    """Write what two programs spoke of two texts, and the texts."""
    voice, texts = load("demo"), ("A barefoot boy chased the chickens.", "Open the door, please.")
    for name in ("fp32", "int8"):
        (folder / "wavs" / name).mkdir(parents=True)
        for index, text in enumerate(texts):
            write_wav(folder / "wavs" / name / f"{index}.wav", voice.synthesize(text, seed=0))
    lines = [f"{index}\t{text}\n" for index, text in enumerate(texts)]
    (folder / "texts.tsv").write_text("".join(lines), encoding="utf-8")


def _make_quick(patch: pytest.MonkeyPatch) -> None:
    """Have commands take few texts, and no time to choose formats."""
    patch.setattr(workbench, "read_calibration_set", _few)
    patch.setattr(compression, "choose", lambda *_: None)
    patch.setattr(evaluation_run, "read_suite", _short)


@pytest.mark.usefixtures("timed_once")
@pytest.mark.parametrize(
    "page",
    [page for page in _PAGES if any(map(_is_run, read_blocks(page)))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_blocks_of_a_page_run_one_after_the_other(
    page: Path,
    ready: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(ready, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tts_compress").symlink_to(ROOT / "tts_compress")
    monkeypatch.chdir(tmp_path)
    _make_quick(monkeypatch)
    blocks = [block for block in read_blocks(page) if _is_run(block)]
    made = {word for b in blocks for word in re.findall(r"--output (out/\S+)", b.text)}
    for folder in made:  # what the page makes itself is not there yet
        shutil.rmtree(folder, ignore_errors=True)
    for block in blocks:
        if block.language == "python":
            _run_python(block, capsys)
        else:
            for words in filter(_runs, simple_commands(block.text)):
                _run(tuple(words))


def _run(words: tuple[str, ...]) -> None:
    if words[0] == "python":
        subprocess.run([sys.executable, *words[1:]], check=True)
        return
    output = Path(words[words.index("--output") + 1]) if "--output" in words else None
    meaning = str(command_parser().parse_args(words[1:]))
    if output is not None and meaning in _MADE:
        shutil.copytree(_MADE[meaning], output)
        return
    assert main(words[1:]) in ((0, 1) if words[1] in _VERDICTS else (0,)), words
    if output is not None and output.is_dir():
        _MADE[meaning] = output.resolve()


def _run_python(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a block with the names that its page speaks of; it prints what its comments say."""
    torch = pytest.importorskip("torch")

    def module() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))

    names: dict[str, Any] = {
        "module": module(),
        "Module": module,
        "batches": [torch.randn(4, 64) for _ in range(4)],
        "paths": [f"{index}.npy" for index in range(16)],
    }
    capsys.readouterr()
    exec(compile(block.text, str(block), "exec"), names)  # noqa: S102  our own page
    printed = capsys.readouterr().out
    for said in re.findall(r"(?m)^print\(.*\)  # ([\d.]+ (?:%|dB))", block.text):
        assert said.replace(" %", "%") in printed, f"{block} says {said}: {printed}"
    # README's block left an empty folder where its command line leaves a page.
    for folder in re.findall(r"\bevaluate\(.*output=\"(.+?)\"", block.text):
        assert Path(folder, "report.html").is_file(), f"{block} leaves no report in {folder}"
