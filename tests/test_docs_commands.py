"""README and docs: every command parses, every name exists, every link leads somewhere.

`test_docs_run.py` runs what can be run. A block that it leaves out says so by a comment above it,
`<!-- parsed only: WHY -->`.
"""

import ast
import importlib
import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import tts_compress
from tests.docs_blocks import PAGES, ROOT, Block, read_blocks, simple_commands
from tts_compress.cli import command_parser

_PARSER = command_parser()
_BLOCKS = [block for page in PAGES for block in read_blocks(page)]
_REPOSITORY = "https://github.com/tts-compress/tts-compress"
_RAW = "https://raw.githubusercontent.com/tts-compress/tts-compress"
_WRAPPERS = {"srun": 1, "accelerate": 3}
"""Programs that run another, and the number of words before it."""

_OTHERS = {"apt", "apt-get", "cd", "docker", "export", "git", "node", "npm", "sbatch", "source"}
"""Programs whose arguments are not checked."""


def _of(*languages: str) -> list[Block]:
    return [block for block in _BLOCKS if block.language in languages]


def test_blocks_have_a_language_that_is_checked() -> None:
    known = {"sh", "python", "toml", "text", "console", "yaml", "html", "js", "json"}
    assert [str(block) for block in _BLOCKS if block.language not in known] == []


@pytest.mark.parametrize("block", _of("sh", "console"), ids=str)
def test_shell_commands_parse(block: Block) -> None:
    typed = re.findall(r"(?m)^\$ (.*)$", block.text)
    for words in simple_commands("\n".join(typed) if block.language == "console" else block.text):
        _check(words)


def _check(words: list[str]) -> None:
    program, rest = words[0], words[1:]
    if program in _WRAPPERS:
        _check(words[_WRAPPERS[program] :])
    elif program == "tts-compress":
        _PARSER.parse_args(_without_variables(rest[: _redirection(rest)]))
    elif program == "make":
        targets = re.findall(r"(?m)^([a-z0-9-]+):", (ROOT / "Makefile").read_text())
        assert rest[0] in targets, f"make has no target {rest[0]}"
    elif program in {"python", "python3"}:
        assert rest[0] in {"-m", "-c"} or (ROOT / rest[0]).is_file(), rest
        assert rest[0] != "-m" or _is_module(rest[1]), rest
    elif program == "pip":
        for extra in re.findall(r"tts-compress\[([\w,-]+)\]", " ".join(rest)):
            assert set(extra.split(",")) <= _extras(), extra
    else:
        assert program in _OTHERS, f"{program}: is it a program?"


def _redirection(words: list[str]) -> int:
    return words.index(">") if ">" in words else len(words)


def _without_variables(words: list[str]) -> list[str]:
    """Put numbers in the place of shell variables, which stand for numbers and paths here."""
    return [re.sub(r"\$\{?\w+\}?", "1", word) for word in words]


def _is_module(name: str) -> bool:
    """Return True of ours, where it exists, and of the programs of others."""
    if (ROOT / "examples" / name).is_dir():
        return True
    if name.split(".", maxsplit=1)[0] in {"tts_compress", "benchmarks"}:
        return find_spec(name) is not None
    known = {
        "http.server",
        "moonshine_voice.download",
        "nltk.downloader",
        "piper",
        "venv",
        "zipfile",
    }
    return name in known


def _extras() -> set[str]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return set(table["project"]["optional-dependencies"])


@pytest.mark.parametrize("block", _of("python"), ids=str)
def test_python_parses_and_imports_what_there_is(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("tts_compress"):
            continue
        names = {alias.name for alias in node.names}
        if node.module == "tts_compress":
            assert names <= set(tts_compress.__all__)
            continue
        found = find_spec(str(node.module))
        assert found is not None, node.module
        assert found.origin is not None
        source = importlib.machinery.SourceFileLoader("", found.origin).get_data(found.origin)
        for name in names:
            assert re.search(rf"\b{name}\b", source.decode()), f"{node.module} has no {name}"


@pytest.mark.parametrize("block", _of("toml"), ids=str)
def test_toml_parses(block: Block) -> None:
    tomllib.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_text_name_commands_and_options_that_exist(page: Path) -> None:
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"))
    (commands,) = (a.choices for a in _PARSER._actions if isinstance(a.choices, dict))
    for code in re.findall(r"`(tts-compress [^`]+)`", text):
        words = shlex.split(" ".join(code.split()))[1:]
        if words[0].startswith("-") or words[0].isupper():
            continue
        assert words[0] in commands, code
        known = commands[words[0]]._option_string_actions
        assert {w for w in words[1:] if w.startswith("--")} <= set(known), code
    for target in re.findall(r"`make ([a-z][a-z0-9-]+)", text):
        assert re.search(rf"(?m)^{target}:", (ROOT / "Makefile").read_text()), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_into_the_repository_lead_somewhere(page: Path) -> None:
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"))
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"src=\"([^\"]+)\"", text)
    for target in targets:
        place, _, anchor = target.partition("#")
        inside = re.match(rf"(?:{_REPOSITORY}/(?:blob|tree)|{_RAW})/main/(.*)", place)
        if inside is None and place.startswith(("http:", "https:", "mailto:")):
            continue
        file = ROOT / inside[1] if inside else page.parent / place if place else page
        assert file.exists(), target
        if anchor:
            assert anchor in _anchors(file), target


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.strip().replace(" ", "-") for title in plain}


def test_readme_has_only_links_that_work_on_a_package_index() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [t for t in re.findall(r"\]\(([^)\s]+)\)", text) if not t.startswith("https://")] == []
