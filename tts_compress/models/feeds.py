"""Arrays that a bare graph is called with: its inputs, and files that hold calls."""

import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import onnx
from numpy.lib import format as npy
from onnx import helper

from tts_compress.artifact import atomic_file
from tts_compress.errors import ModelError, RecipeError, model_errors, reason
from tts_compress.onnx.modules import initializer_names
from tts_compress.onnx.session import Feeds
from tts_compress.reading import MOST_ARRAY_BYTES, bounded_bytes, check_archive, open_file

UNREADABLE = (
    *(OSError, ValueError, EOFError, KeyError, MemoryError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, SyntaxError, tokenize.TokenError),
)
"""Raised by numpy and zipfile for damaged files."""

_NPY = b"\x93NUMPY"
_ENDING = ".npy"
_MOST_ARRAYS = 100_000
_MOST_FILE_BYTES = 1 << 36

_HEADERS: dict[Any, Callable[..., Any]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


class Arrays(Mapping[str, npt.NDArray[Any]]):
    """The arrays of an `.npz`, by name; each is read when it is asked for."""

    def __init__(self, archive: zipfile.ZipFile, most_bytes: int) -> None:
        self._archive = archive
        self._most_bytes = most_bytes
        names = archive.namelist()
        if len(names) > _MOST_ARRAYS:
            raise ValueError(f"it holds {len(names)} files; at most {_MOST_ARRAYS} are accepted")
        if other := next((name for name in names if not name.endswith(_ENDING)), None):
            raise ValueError(f"it holds {other!r:.60}, which is no array")
        self._names = {name.removesuffix(_ENDING): name for name in names}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        with self._archive.open(self._names[name]) as member:
            return read_array(member, self._most_bytes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def open_arrays(
    path: Path, most_bytes: int = MOST_ARRAY_BYTES, *, whole: bool = False
) -> Iterator[Arrays]:
    """Open an `.npz`.

    Args:
        path: The file.
        most_bytes: Largest single array.
        whole: All arrays together may have no more.
    """
    with open_file(path, _MOST_FILE_BYTES) as file, zipfile.ZipFile(file) as archive:
        if whole:
            check_archive(archive.infolist(), most_bytes)
        yield Arrays(archive, most_bytes)


def read_array(file: IO[bytes], most_bytes: int = MOST_ARRAY_BYTES) -> npt.NDArray[Any]:
    """Return the array of an open `.npy`."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the format; 1.0 and 2.0 are read")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("it is no plain array (pickled objects are never loaded)")
    if dtype.kind not in "biufc":
        raise ValueError(f"its values are of type {dtype!s:.60}; give numbers")
    bounded_bytes(shape, dtype.itemsize, most_bytes)
    file.seek(0)
    array: npt.NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array


def is_array(file: IO[bytes]) -> bool:
    """Return True if an open file begins as a `.npy` does; it is at its beginning again then."""
    beginning = file.read(len(_NPY))
    file.seek(0)
    return beginning == _NPY


FEEDS_SUFFIX = ".npz"

_KEY = re.compile(r"(?P<call>0|[1-9]\d{0,8})/(?P<input>.+)", re.DOTALL)
_FORM = "name arrays '<call>/<input>', such as '0/{0}', '1/{0}'"
_FRAMES = 32
_SHOWN = 5
"""Problems that one message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInput:
    """One input of a graph."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...] | None
    """Fixed sizes as numbers, free ones by name; None where any number of axes is accepted."""

    def __str__(self) -> str:
        axes = "any shape" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        return f"{self.name} {self.dtype} {axes}"

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return True if an array of a shape can be this input."""
        if self.shape is None:
            return True
        pairs = zip(self.shape, shape)  # noqa: B905
        return len(shape) == len(self.shape) and all(isinstance(w, str) or w == n for w, n in pairs)

    def problem(self, array: npt.NDArray[Any]) -> str | None:
        """Return why an array cannot be this input, or None if it can."""
        if array.dtype != self.dtype:
            return f"is {array.dtype}; the graph wants {self}: convert it with astype()"
        if not self.fits(array.shape):
            return f"has shape {list(array.shape)}; the graph wants {self}"
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return "has values that are not finite"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedsFile:
    """A checked `.npz` of calls; arrays are read when their call is."""

    path: Path
    calls: int
    inputs: tuple[str, ...]

    def read(self, count: int) -> Iterator[Feeds]:
        """Yield the inputs of the first `count` calls."""
        with open_arrays(self.path) as arrays:
            for call in range(min(count, self.calls)):
                yield {name: arrays[f"{call}/{name}"] for name in self.inputs}


def graph_inputs(model: onnx.ModelProto) -> dict[str, GraphInput]:
    """Return the inputs of a graph, by name."""
    constants = initializer_names(model.graph)
    inputs = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        try:
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"input '{value.name}' of the graph is no tensor of a known type; only tensors are "
                "fed"
            ) from error
        dims = tensor.shape.dim
        sizes = (d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in dims)
        inputs[value.name] = GraphInput(
            name=value.name,
            dtype=dtype,
            shape=tuple(sizes) if tensor.HasField("shape") else None,
        )
    return inputs


def made_up_feeds(model: onnx.ModelProto) -> Feeds:
    """Return inputs of the declared types and shapes, with free sizes of one or a few frames.

    Whole numbers of one axis, or none, are often lengths: they state the number of frames.
    """
    generator, feeds = np.random.default_rng(0), {}
    for name, expected in graph_inputs(model).items():
        free = [1, *[_FRAMES] * (len(expected.shape or ()) - 1)]
        sizes = [n if isinstance(n, int) else f for n, f in zip(expected.shape or (), free)]  # noqa: B905
        with model_errors(f"input '{expected}' cannot be made up"):
            bounded_bytes(sizes, 8, MOST_ARRAY_BYTES)
        values = generator.normal(size=sizes)
        if expected.dtype.kind in "iu":
            values = np.full(sizes, 1 if len(sizes) > 1 else _FRAMES)
        feeds[name] = values.astype(expected.dtype)
    return feeds


def open_feeds(path: Path, expected: Mapping[str, GraphInput]) -> FeedsFile:
    """Open a file of calls and check every array.

    Args:
        path: An `.npz` whose arrays are named `<call>/<input>`, with calls counted from 0.
        expected: The inputs of the graph, by name.
    """
    form = _FORM.format(next(iter(expected), "input"))
    try:
        with open_arrays(path) as arrays:
            calls, problems = _check(arrays, expected)
    except FileNotFoundError as error:
        raise RecipeError(f"no file '{path}'; give an existing .npz of calls") from error
    except UNREADABLE as error:
        raise RecipeError(f"cannot read '{path}': {reason(error)}; {form}") from error
    if not calls and not problems:
        problems = ["holds no calls"]
    if problems:
        shown = "; ".join(problems[:_SHOWN])
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise RecipeError(f"'{path}': {shown}{more}; {form}")
    return FeedsFile(path=path, calls=calls, inputs=tuple(expected))


@contextmanager
def feeds_writer(path: Path | str) -> Iterator[Callable[[Feeds], None]]:
    """Give a function that adds a call to an `.npz`, whose arrays are named `<call>/<input>`.

    Every call is written at once, so that as many can be recorded as the disk holds; the file
    appears when the block ends without error.
    """
    count = 0
    with atomic_file(Path(path)) as partial, zipfile.ZipFile(partial, "w") as archive:

        def add(feeds: Feeds) -> None:
            nonlocal count
            for name, array in feeds.items():
                # Without the time of writing: equal calls are equal files.
                entry = zipfile.ZipInfo(f"{count}/{name}.npy")
                with archive.open(entry, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
            count += 1

        yield add


def write_calls(calls: Iterable[Any], path: Path) -> Path:
    """Write an `.npz` of dictionaries of arrays by the names of a graph's inputs."""
    with feeds_writer(path) as add:
        for number, call in enumerate(calls):
            if not isinstance(call, Mapping):
                raise RecipeError(
                    f"call {number} of the calibration is a {type(call).__name__}; give "
                    "dictionaries of arrays by the names of the graph's inputs"
                )
            for name, value in call.items():
                if np.asarray(value).dtype.hasobject:
                    kind = type(value).__name__
                    raise RecipeError(f"input {name!r} of call {number} is a {kind}; give an array")
            add(dict(call))
    return path


def _check(arrays: Mapping[str, Any], expected: Mapping[str, GraphInput]) -> tuple[int, list[str]]:
    """Return the number of calls, and everything that is wrong with the arrays."""
    calls: dict[int, set[str]] = {}
    problems, shows, filled = [], False, set[int]()
    for key in arrays:
        parts = _KEY.fullmatch(key)
        if parts is None:
            problems.append(f"array {key!r} is not named '<call>/<input>'")
            continue
        wanted = expected.get(parts["input"])
        if wanted is None:
            accepted = ", ".join(expected) or "none"
            problems.append(f"array {key!r}: no such input; the graph's inputs are {accepted}")
            continue
        calls.setdefault(int(parts["call"]), set()).add(parts["input"])
        array = arrays[key]
        shows |= bool(array.any())
        filled |= {int(parts["call"])} if array.size else set()
        if problem := wanted.problem(array):
            problems.append(f"array {key!r} {problem}")
    if calls and not shows:
        problems.append("every number is zero, which shows no ranges; give real inputs")
    if calls and (gaps := max(calls) + 1 - len(calls)):
        first = next(call for call in range(max(calls)) if call not in calls)
        problems.append(f"call {first} is missing ({gaps} missing below {max(calls)})")
    problems += [f"every array of call {c} is empty: leave it out" for c in {*calls} - filled]
    for call, names in sorted(calls.items()):
        problems += [f"call {call} lacks input '{n}'" for n in expected if n not in names]
    return len(calls), problems
