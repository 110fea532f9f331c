"""Results of units, on any file system: each is one archive, there whole or not at all.

units/<key>.zip                  what a unit made
log/<key>/<time>-<random>.json   one execution: what it was, where, how long, how it ended
reports/<voice>/<scheme>/        the report of a pair, for people
index.html sweep.json sweep.csv  the sweep's page and its numbers
"""

import json
import platform
import secrets
import shutil
import time
import zipfile
import zlib
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tts_compress.artifact import atomic_file
from tts_compress.errors import ArtifactError, MissingExtraError, reason
from tts_compress.folders import make_directory, temporary_folder
from tts_compress.reading import MOST_TEXT_BYTES, check_archive, parse_json

_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "r2"})

_LARGEST = 16 * 2**30
"""Bytes that an archive may unpack to, where as many are free."""

# Errors of `zipfile` for archives that are cut, altered, encrypted or of another method.
_DAMAGES = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, KeyError, RuntimeError)

_SAME_TIME = (1980, 1, 1, 0, 0, 0)
"""Date of all files in archives, so that the same content gives the same bytes."""


@dataclass(frozen=True, slots=True)
class Files:
    """A folder of a file system that fsspec knows; names are relative to it."""

    system: Any
    root: str
    puts_whole: bool
    """True for an object store: what is put there is visible when all of it has come."""

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of all files in a folder and the folders in it."""
        start = self.root.rstrip("/") + "/"
        try:
            paths = self.system.find(start + folder)
        except FileNotFoundError:
            return
        yield from (str(path).removeprefix(start) for path in paths)

    def exists(self, name: str) -> bool:
        """Return True if there is such a file."""
        return bool(self.system.isfile(f"{self.root}/{name}"))

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading at any place of it."""
        if not self.exists(name):  # a device or a pipe, which may have no end
            raise ValueError("it is no file")
        file: IO[bytes] = self.system.open(f"{self.root}/{name}", "rb")
        return file

    def write(self, name: str, content: bytes | Path) -> None:
        """Write a file, or copy one of this machine; it is never seen half-written."""
        path = f"{self.root}/{name}"
        if self.puts_whole:
            self._put(content, path)
        elif "file" in self.system.protocol:
            make_directory(Path(path).parent)
            # Machines that share the folder may have processes of the same number.
            whole = Path(path).with_name(f".{Path(path).name}.{platform.node()}")
            with atomic_file(whole) as partial:
                self._put(content, str(partial))
            whole.replace(path)
        else:
            folder, _, last = path.rpartition("/")
            self.system.makedirs(folder, exist_ok=True)
            unseen = f"{folder}/.{last}.{secrets.token_hex(4)}"
            self._put(content, unseen)
            self.system.mv(unseen, path)

    def _put(self, content: bytes | Path, path: str) -> None:
        if isinstance(content, bytes):
            self.system.pipe_file(path, content)
        else:
            self.system.put_file(str(content), path)


@dataclass(frozen=True, slots=True)
class Results:
    """The output of a sweep."""

    files: Files

    def keys(self) -> set[str]:
        """Return the keys of all units that are done."""
        names = (Path(name) for name in self.files.names("units"))
        return {path.stem for path in names if path.suffix == ".zip" and path.name[0] != "."}

    def has(self, key: str) -> bool:
        """Return True if a unit is done."""
        return self.files.exists(_archive(key))

    def put(self, key: str, folder: Path) -> None:
        """Keep the files in a folder as the result of a unit."""
        with temporary_folder() as spare:
            whole = spare / "result.zip"
            with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                for file in sorted(path for path in folder.rglob("*") if path.is_file()):
                    entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), _SAME_TIME)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    with file.open("rb") as source, archive.open(entry, "w") as target:
                        shutil.copyfileobj(source, target)
            self.files.write(_archive(key), whole)

    def get(self, key: str, folder: Path) -> None:
        """Put the files of a unit's result into a folder."""
        with self._opened(key) as archive:
            folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(folder).free
            check_archive(archive.infolist(), min(_LARGEST, free))
            archive.extractall(folder)

    def read(self, key: str, name: str) -> str:
        """Return the text of one file of a unit's result."""
        with self._opened(key) as archive:
            entry = archive.getinfo(name)
            check_archive([entry], MOST_TEXT_BYTES)
            return archive.read(entry).decode("utf-8")

    @contextmanager
    def _opened(self, key: str) -> Iterator[zipfile.ZipFile]:
        try:
            with self.files.open(_archive(key)) as file, zipfile.ZipFile(file) as archive:
                yield archive
        except OSError as error:
            raise ArtifactError(f"cannot read '{_archive(key)}': {reason(error)}") from error
        except _DAMAGES as error:
            raise wrong_result(key, f"is damaged: {reason(error)}") from error

    def note(self, key: str, record: Mapping[str, Any]) -> None:
        """Add an execution of a unit to the log."""
        name = f"log/{key}/{time.time_ns()}-{secrets.token_hex(4)}.json"
        self.files.write(name, json.dumps(record).encode())

    def log(self, keys: Container[str]) -> dict[str, list[dict[str, Any]]]:
        """Return all executions of units by key, the first one first.

        Files that are no such record, such as those of a file manager, count for nothing.
        """
        records: dict[str, list[dict[str, Any]]] = {}
        for name in sorted(self.files.names("log")):
            key = Path(name).parent.name
            if key not in keys or not name.endswith(".json") or Path(name).name[0] == ".":
                continue
            with suppress(OSError, ValueError), self.files.open(name) as file:
                record = parse_json(file.read(MOST_TEXT_BYTES))
                if isinstance(record, dict):
                    records.setdefault(key, []).append(record)
        return records


def open_results(output: str) -> Results:
    """Return the results in a folder: a path, or a URL that fsspec knows."""
    protocol, is_url, _ = output.partition("://")
    try:
        import fsspec

        if not is_url:  # whatever signs are in the path
            return Results(Files(fsspec.filesystem("file"), str(Path(output).absolute()), False))
        system, root = fsspec.core.url_to_fs(output)
    except ImportError as error:
        package = error.name or f"fsspec's package for {protocol}"
        raise MissingExtraError(package, "sweep") from error
    except ValueError as error:
        raise ArtifactError(f"cannot open the output {output!r}: {reason(error)}") from error
    return Results(Files(system, root.rstrip("/"), protocol in _OBJECT_STORES))


def wrong_result(key: str, problem: str) -> ArtifactError:
    """Return the error of a result that cannot be right, such as one that `is damaged`."""
    return ArtifactError(
        f"the result '{_archive(key)}' {problem}; remove it, and run the sweep again"
    )


def _archive(key: str) -> str:
    return f"units/{key}.zip"
