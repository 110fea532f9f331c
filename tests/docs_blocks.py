"""Code blocks of README and docs: where they stand, and whether they are run or only parsed."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("*/README.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
)

_BLOCK = re.compile(
    r"(?ms)^(?:<!-- parsed only: (?P<why>[^\n]+) -->\n+)?^(?P<indent> *)```(?P<language>\S*)\n"
    r"(?P<text>.*?)^(?P=indent)```$"
)


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: Path
    line: int
    language: str
    text: str

    parsed_only: str | None
    """The reason why it is not run, from the comment above it; None where it is run."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def read_blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page=page,
            line=text[: found.start("text")].count("\n"),
            language=found["language"],
            text=found["text"],
            parsed_only=found["why"],
        )
        for found in _BLOCK.finditer(text)
    ]


def simple_commands(script: str) -> list[list[str]]:
    """Return the words of each command of a shell script without control structures."""
    commands = []
    for line in script.replace("\\\n", " ").splitlines():
        words = list(shlex.shlex(line, posix=True, punctuation_chars="&|;"))
        if re.match(r"\w+=\$\(", line):  # NAME=$(COMMAND …)
            words = shlex.split(line.partition("$(")[2].rstrip(")"))
        elif not set("&|;") & set("".join(shlex.split(line, comments=True))):
            words = shlex.split(line, comments=True)
        parts: list[list[str]] = [[]]
        for word in words:
            if word in {"&&", "|", ";"}:
                parts.append([])
            else:
                parts[-1].append(word)
        commands += [part for part in parts if part]
    return commands
