"""Troubleshooting: every error text on the page is one that the code can print."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_PAGE = _ROOT / "docs" / "troubleshooting.md"


@cache
def _texts() -> tuple[re.Pattern[str], ...]:
    """Return a pattern for every text of the package that could be an error's."""
    found = set()
    for path in sorted((_ROOT / "tts_compress").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [v.value if isinstance(v, ast.Constant) else None for v in node.values]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts = [node.value]
            else:
                continue
            said = [str(part) for part in parts if part is not None]
            if len("".join(said)) >= 15:
                found.add("".join(".+" if p is None else re.escape(str(p)) for p in parts))
    return tuple(map(re.compile, sorted(found)))


def _is_printed(line: str) -> bool:
    return any(text.fullmatch(line) for text in _texts())


@pytest.mark.parametrize(
    "block", re.findall(r"(?ms)^```text\n(.*?)^```", _PAGE.read_text(encoding="utf-8"))
)
def test_errors_of_the_page_are_printed_by_the_code(block: str) -> None:
    assert block.count("\n") == 1, "an error is one line"
    assert _is_printed(block.strip()), block


def test_a_text_that_nothing_prints_is_found() -> None:
    assert not _is_printed("no file 'voice.onnx'; please buy one")
