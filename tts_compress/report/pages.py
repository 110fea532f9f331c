"""Pages of templates: what those of reports, searches and sweeps have in common."""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tts_compress.evaluation import formatting

_SHARED = Path(__file__).with_name("templates")


def render(template: Path, **values: Any) -> str:
    """Return a page that needs nothing but itself; the same values give the same bytes.

    Args:
        template: `NAME.html.j2`. Its style is that of reports and `NAME.css` beside it, its script
            `NAME.js`, where there are such files.
        values: What it shows, beside `words`, the functions that write numbers.
    """
    name = template.name.partition(".")[0]
    styles = dict.fromkeys((_SHARED / "report.css", template.with_name(f"{name}.css")))
    script = _read(template.with_name(f"{name}.js"))
    # The page's policy admits this script and no other.
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shared = {"words": formatting, "style": "".join(map(_read, styles)), "script": script}
    page = _environment(template.parent).get_template(template.name)
    return page.render(**shared, script_hash=allowed, **values)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@cache
def _environment(folder: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader([folder, _SHARED]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
