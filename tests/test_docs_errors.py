"""Troubleshooting: the errors of the page are those that the program prints.

Commands print some of them here, word for word; the others are texts that the sources hold.
"""

import ast
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.docs_blocks import ROOT
from tests.graphs import make_model, make_node

_PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
_LINES = re.findall(r"(?ms)^```text\n(.*?)\n```", _PAGE)
_COMMANDS = {
    "inspect nothing.onnx": "no file 'nothing.onnx'",
    "inspect model.onnx": "'model.onnx' is not a Piper voice",
    "inspect vocoder.onnx": "no file 'vocoder.onnx.json'",
    "inspect cut.onnx": "'cut.onnx' is not",
    "inspect nan.onnx": "'nan.onnx': weight",
    "inspect apart.onnx": "'apart.onnx' is not",
    "inspect notes.txt": "unknown kind of file",
    "inspect voice.ckpt": "'voice.ckpt' is not",
    "inspect out/voice-int8": "'out/voice-int8' holds no",
    "quantize voice.onnx --scheme int3 --output new": "unknown scheme",
    "quantize voice.onnx --output out/old": "'out/old' exists",
    "quantize voice.onnx --output out --force": "'out' has no",
    "quantize onnx:vocoder.onnx --output new": "'onnx:vocoder.onnx' is a bare",
    "synthesize voice.onnx '' --output a.wav": "nothing to speak",
    "evaluate voice.onnx voice.onnx --output out/report": "'out/report' has a report",
    "evaluate voice.onnx voice.onnx --suite de-quick --output new": "'voice.onnx' speaks",
}
"""Commands, and how the lines of the page begin that they print."""


@cache
def _texts() -> set[tuple[str | None, ...]]:
    """Return every text of the package that could be an error's; None stands for a value."""
    texts = set()
    for path in sorted((ROOT / "tts_compress").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                values = node.values
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                values = [node]
            else:
                continue
            parts = tuple(str(v.value) if isinstance(v, ast.Constant) else None for v in values)
            if len("".join(filter(None, parts))) >= 15:
                texts.add(parts)
    return texts


def _is_printed(line: str) -> bool:
    for parts in _texts():
        if all(part is None or part in line for part in parts):
            pattern = "".join(".+" if part is None else re.escape(part) for part in parts)
            if re.fullmatch(pattern, line):
                return True
    return False


@pytest.mark.parametrize(
    "line", [line for line in _LINES if not line.startswith(tuple(_COMMANDS.values()))]
)
def test_errors_of_the_page_are_texts_of_the_code(line: str) -> None:
    assert "\n" not in line, "an error is one line"
    assert _is_printed(line), line


def test_a_text_that_nothing_prints_is_noticed() -> None:
    assert not _is_printed("no file 'voice.onnx'; please buy one")


def _vocoder(path: Path) -> None:
    """Write a graph that makes `y` of `mel` [1, 80, frames] by one convolution."""
    kernel = np.full((32, 80, 3), 0.1, np.float32)
    node = make_node("Conv", "mel conv.weight", "y", "/conv/Conv", pads=[1, 1])
    ends = {"mel": [1, 80, "frames"]}, {"y": [1, 32, "frames"]}
    model = make_model([node], *ends, {"conv.weight": kernel}, opset=17)
    onnx.save(model, path)


@pytest.fixture(scope="module")
def files(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The working directory: files that are right, and files that are not."""
    folder = tmp_path_factory.mktemp("files")
    with chdir(folder):
        _write_files(tiny_path)
        yield


def _write_files(tiny_path: Path) -> None:
    for name in ("voice", "cut", "nan", "apart"):
        shutil.copy(tiny_path, f"{name}.onnx")
        shutil.copy(f"{tiny_path}.json", f"{name}.onnx.json")
    Path("cut.onnx").write_bytes(tiny_path.read_bytes()[:1000])
    model = onnx.load("nan.onnx")
    apart = onnx.load("apart.onnx")
    onnx.save(apart, "apart.onnx", save_as_external_data=True, location="apart.onnx.data")
    Path("apart.onnx.data").unlink()
    tensor = next(t for t in model.graph.initializer if t.name == "dec.conv_pre.weight")
    tensor.CopyFrom(
        numpy_helper.from_array(np.full_like(numpy_helper.to_array(tensor), np.nan), tensor.name)
    )
    onnx.save(model, "nan.onnx")
    _vocoder(Path("vocoder.onnx"))
    _vocoder(Path("model.onnx"))
    shutil.copy("voice.onnx.json", "model.onnx.json")
    Path("notes.txt").write_text("about the voice")
    Path("voice.ckpt").write_bytes(b"no checkpoint")
    shutil.copy("voice.onnx.json", "voice.ckpt.json")
    Path("out", "voice-int8").mkdir(parents=True)
    Path("out", "thesis.txt").write_text("years of work")
    Path("out", "old").mkdir()
    Path("out", "old", "manifest.json").write_text("{}")
    Path("out", "report").mkdir()
    Path("out", "report", "report.json").write_text("{}")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("typed", _COMMANDS)
def test_errors_of_commands_stand_on_the_page(typed: str, refused: Callable[..., str]) -> None:
    (expected,) = (line for line in _LINES if line.startswith(_COMMANDS[typed]))
    printed = refused(*shlex.split(typed))
    # On the page, `…` stands for a list, or for words of another package.
    pattern = re.escape(f"tts-compress: {expected}").replace("…", ".+")
    assert re.fullmatch(pattern, printed), printed
