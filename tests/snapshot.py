"""Snapshot of users' outputs: bytes of artifacts, reports without timings, JSON, signatures.

A refactoring compares two of them: `pytest -m snapshot --snapshot before.json`, the change, the
same again, `diff before.json after.json`. The test of each system adds its part in its own
environment; parts go to the same file.
"""

import contextlib
import hashlib
import inspect
import io
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tts_compress
from tts_compress import compress, find_recipe

_TIMED = {"environment", "first_audio", "latency", "load", "memory", "rtf"}
"""Keys of a report and of a manifest that differ from run to run or from machine to machine."""

_TORCH_SCHEMES = (
    *("fp16", "bf16", "int8", "int8-static", "int8-dynamic", "int8-weight-only"),
    "int4-weight-only",
)


class Snapshot:
    """Collects named parts, and forgets where files lie."""

    def __init__(self, root: Path) -> None:
        self.parts: dict[str, Any] = {}
        self._root = root

    def add(self, name: str, value: Any) -> None:
        """Note a JSON value; keys of timings are dropped, folders of this run renamed."""
        text = json.dumps(_untimed(value), sort_keys=True, default=str)
        self.parts[name] = json.loads(text.replace(str(self._root), "TMP"))

    def add_artifact(self, name: str, folder: Path) -> None:
        """Note the SHA-256 of each file of an artifact, and its manifest."""
        files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json")
        hashes = {str(p.relative_to(folder)): _sha256(p) for p in files}
        self.add(name, hashes)
        self.add(f"{name} manifest", json.loads((folder / "manifest.json").read_text("utf-8")))

    def add_scheme(self, spec: str, name: str, scheme: str, **keywords: Any) -> Path:
        """Note what a scheme makes of a model, with at most four calibration texts or calls."""
        folder = self._root / name / scheme
        recipe = find_recipe(keywords.pop("family"), scheme)
        if recipe.calibration is not None:
            few = recipe.calibration.model_copy(update={"utterances": 4})
            recipe = recipe.model_copy(update={"calibration": few})
        else:
            keywords.pop("calibration", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the processor may lack a type's arithmetic
            compress(spec, scheme, recipe=recipe, **keywords).save(folder)
        self.add_artifact(f"{name} {scheme}", folder)
        return folder

    def add_family(self, family: str, spec: str, texts: str) -> None:
        """Note every scheme of a system in torch, and what `inspect` and a short training give."""
        from tts_compress.cli import main

        for scheme in _TORCH_SCHEMES:
            folder = self.add_scheme(spec, family, scheme, family=family, calibration=texts)
            self.add(
                f"{family} {scheme} inspect", _printed(main, "inspect", str(folder), "--no-time")
            )
        output = self._root / family / "qat"
        short = ["--steps", "3", "--threads", "1", "--texts", texts, "--output", str(output)]
        self.add(f"{family} qat", _printed(main, "qat", spec, *short))
        self.add_artifact(f"{family} int8-qat", output)

    def add_signatures(self) -> None:
        """Note the signature of every public name and of its public methods."""
        for name in tts_compress.__all__:
            value = getattr(tts_compress, name)
            if not callable(value):
                self.add(f"api {name}", str(value))
                continue
            parts = {"": value} | {
                key: member for key, member in vars(value).items() if inspect.isfunction(member)
            }
            shown = {key: _signature(part) for key, part in parts.items() if key[:1] != "_"}
            self.add(f"api {name}", shown)


@pytest.fixture(scope="session")
def snapshot(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Snapshot]:
    """Return the collector of the parts of the file that `--snapshot` names."""
    path = request.config.getoption("--snapshot")
    if path is None:
        pytest.skip("a comparison for refactorings; give --snapshot FILE")
    found = Snapshot(tmp_path_factory.getbasetemp())
    yield found
    before = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    text = json.dumps(before | found.parts, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--snapshot FILE`."""
    parser.addoption("--snapshot", type=Path, help="write what users get into this JSON file")


def _printed(main: Any, *arguments: str) -> Any:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([*arguments, "--json"]) == 0
    return json.loads(printed.getvalue())


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untimed(entry) for key, entry in value.items() if key not in _TIMED}
    return [_untimed(entry) for entry in value] if isinstance(value, list) else value


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):
        return "none"
