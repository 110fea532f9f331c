"""README and docs: every TOML block is read as what it is, by the code that reads users' files.

A block that shows a part of a file is completed by the least that such a file holds.
"""

import json
import re
import tomllib
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tts_compress
from tests.docs_blocks import PAGES, ROOT, Block, read_blocks
from tts_compress.config import parse_config, read_config
from tts_compress.evaluation import Evaluation, read_gates, read_report, read_suite
from tts_compress.inspection.check import RuntimeFile
from tts_compress.models.contract.reading import read_contract_table, resolved
from tts_compress.models.contract.schema import Contract
from tts_compress.recipes.recipe import find_recipe, read_calibration_set
from tts_compress.sweep.plan import Plan

_BLOCKS = [block for page in PAGES for block in read_blocks(page) if block.language == "toml"]

_CONTRACT = """
version = 1
name = "mine"
sample_rate = 16000
[tokens]
source = "characters"
vocabulary = "letters.json"
[input.phones]
role = "tokens"
"""


def _with(path: Path, before: str) -> Path:
    """Put keys that a part of a file lacks in front of it."""
    text = path.read_text(encoding="utf-8")
    if "version" not in tomllib.loads(text):
        path.write_text(f"{before}\n{text}", encoding="utf-8")
    return path


def _recipe(path: Path) -> None:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    if "version" not in table:
        needs = any(rule.get("algorithm") or rule.get("activations") for rule in table["component"])
        _with(
            path,
            'version = 1\nfamily = "piper"\nscheme = "int8"\nsummary = "mine"\n'
            + ("[calibration]\n" if needs and "calibration" not in table else ""),
        )
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    find_recipe(table["family"], table["scheme"], path)


def _family(path: Path) -> None:
    _with(path, 'version = 1\nfamily = "piper"')
    for scheme in tomllib.loads(path.read_text(encoding="utf-8"))["scheme"]:
        find_recipe("piper", scheme, path)


def _suite(path: Path) -> None:
    with wave.open(str(path.with_name("voice.wav")), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(32_000))
    shipped = (ROOT / "eval" / "suites" / "en-quick.toml").read_text(encoding="utf-8")
    path.write_text(f"{shipped}\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    read_suite(path)


def _plan(path: Path) -> None:
    least = 'version = 1\nvoices = ["demo"]\nschemes = ["int8"]\noutput = "out"\n'
    read_config(_with(path, least), Plan)


def _contract(path: Path) -> None:
    table = read_contract_table(path)
    if "version" not in table:
        table = tomllib.loads(_CONTRACT) | table
    parse_config(json.dumps(resolved(table, {}, path)), Contract, str(path))


def _project(path: Path) -> None:
    groups = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["entry-points"]
    kinds = ("metrics", "recognizers", "families", "layers")
    assert set(groups) <= {f"tts_compress.{kind}" for kind in kinds}


_READERS: dict[str, Callable[[Path], Any]] = {
    "project": _project,
    "gate": read_gates,
    "texts": lambda path: read_calibration_set(str(path)),
    "scheme": _family,
    "component": _recipe,
    "prompt": _suite,
    "voices": _plan,
    "environments": _plan,
    "releases": lambda path: read_config(path, RuntimeFile),
    "then": _contract,
    "tokens": _contract,
}
"""Readers by a key that only their files have; of several the first decides."""


def _read(text: str, folder: Path) -> None:
    path = folder / "block.toml"
    path.write_text(text, encoding="utf-8")
    table = tomllib.loads(text)
    is_family = isinstance(table.get("component"), dict)
    known = [key for key in _READERS if key in table and (key != "scheme" or is_family)]
    _READERS[known[0]](path)


_API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_api_page_has_everything_public() -> None:
    """`compress_trained` was named in the text of `compress` and had no entry."""
    described = set(re.findall(r"(?m)^::: tts_compress\.(\w+)$", _API))
    assert described == set(tts_compress.__all__)


@pytest.fixture(scope="module")
def shipped() -> Evaluation:
    return read_report(ROOT / "eval" / "reports" / "demo-int8.json")


@pytest.mark.parametrize(
    "field",
    [
        name
        for row in re.findall(r"(?m)^\| (`[a-z][^|]*) \|", _API)
        for name in re.findall(r"`([\w.]+)`", row)
    ],
)
def test_a_field_of_an_evaluation_on_the_api_page_is_one(field: str, shipped: Any) -> None:
    found = shipped
    for part in field.split("."):
        found = getattr(found, part)


@pytest.mark.parametrize("block", _BLOCKS, ids=str)
def test_a_block_is_a_valid_file(block: Block, tmp_path: Path) -> None:
    _read(block.text, tmp_path)
