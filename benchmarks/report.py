"""The files of a report: JSON, Markdown, a picture."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tts_compress.artifact import write_text_atomically
from tts_compress.errors import MissingExtraError
from tts_compress.terminal import show

MISSING = "\N{EN DASH}"

COLORS = {"reference": "#333333", "peer": "#8a8f98", "scheme": "#0a7d5a"}


def write_json(path: Path, document: object) -> Path:
    """Write a document and the folder it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, json.dumps(document, indent=2, default=asdict) + "\n")
    return path


def write_report(
    stem: Path,
    document: object,
    markdown: Sequence[str],
    draw: Callable[[Any], Any] | None = None,
) -> list[Path]:
    """Write `.json`, `.md` and, if it is drawn, `.svg`; return the paths."""
    # The name of a device may have a dot.
    paths = [stem.with_name(stem.name + suffix) for suffix in (".json", ".md", ".svg")]
    write_json(paths[0], document)
    write_text_atomically(paths[1], "\n".join(markdown) + "\n")
    if draw is None:
        return paths[:2]
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingExtraError("matplotlib", "evaluate") from error
    figure = draw(pyplot)
    figure.savefig(paths[2], metadata={"Date": None})
    pyplot.close(figure)
    return paths


def print_report(stem: Path, *parts: Any) -> None:
    """Write a report, as `write_report` does, and print its Markdown and its files."""
    print("\n".join(parts[1]))
    show(*(f"written: {path}" for path in write_report(stem, *parts)))


def render(template: Path, values: Mapping[str, Any], filters: Mapping[str, Any]) -> list[str]:
    """Return the lines of a template in Markdown; `share` is a filter of all."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(  # noqa: S701  no HTML
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters.update(filters, share=share)
    return environment.from_string(template.read_text("utf-8")).render(values).splitlines()


def share(part: float | None, digits: int = 1) -> str:
    """Return a share in per cent."""
    return MISSING if part is None else f"{100 * part:.{digits}f} %"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "l") -> list[str]:
    """Return a table in Markdown, aligned by `l` and `r`, the rest to the right."""
    rule = " | ".join({"l": ":--", "r": "--:"}[side] for side in align.ljust(len(head), "r"))
    return [f"| {' | '.join(head)} |", f"| {rule} |", *(f"| {' | '.join(row)} |" for row in rows)]
