"""The repository layout is the architecture; these tests keep it honest."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import tts_compress

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tts_compress"

LAYERS = [
    "lazy",
    "plain",
    "errors",
    "options",
    "reading",
    "processes",
    "folders",
    "artifact",
    "audio",
    "progress",
    "families",
    "config",
    "environment",
    "recipes",
    "numerics",
    "onnx",
    "torch",
    "models",
    "qat",
    "compression",
    "export",
    "evaluation",
    "report",
    "search",
    "sweep",
    "terminal",
    "inspection",
    "cli",
]
"""A layer imports only those before it."""

_NAMES_OF_NOTHING = {"utils", "util", "helpers", "helper", "common", "core", "misc"}

_NAMES_OF_ANYTHING = {"found", "given", "known", "made", "one", "own", "place"}
"""Names that say nothing about a value, which has a name of its own."""

_MOST_SHARED_CLASS_NAMES = 7
"""Names that several classes of the package have; to be lowered by whoever removes some."""


def _modules(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*.py") if "__pycache__" not in p.parts)


@dataclass(frozen=True)
class _Facts:
    """Names that a module imports, and whether it is documented."""

    documented: bool
    imports: frozenset[str]
    """Full names of what it imports, wherever; `from x import y` imports x.y."""

    needed: frozenset[str]
    """Packages that are imported with it."""

    bindings: tuple[tuple[int, str], ...]
    """Lines and names of values."""

    classes: tuple[str, ...]


@cache
def _facts(module: Path) -> _Facts:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    imports, needed, bindings, classes = set[str](), set[str](), [], []
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom():
                assert node.level == 0, f"{module}: relative import"
                names = {f"{node.module}.{alias.name}" for alias in node.names}
            case ast.Import():
                names = {alias.name for alias in node.names}
            case ast.arg():
                bindings.append((node.lineno, node.arg))
                continue
            case ast.Name(ctx=ast.Store()):
                bindings.append((node.lineno, node.id))
                continue
            case ast.ClassDef():
                classes.append(node.name)
                continue
            case _:
                continue
        imports |= names
        needed |= {name.split(".")[0] for name in names if node in tree.body}
    return _Facts(
        documented=ast.get_docstring(tree) is not None,
        imports=frozenset(imports),
        needed=frozenset(needed),
        bindings=tuple(bindings),
        classes=tuple(classes),
    )


def _imported_layers(module: Path) -> set[str]:
    imports = (name.split(".") for name in _facts(module).imports)
    return {parts[1] for parts in imports if parts[0] == "tts_compress" and len(parts) > 1}


@pytest.mark.parametrize("layer", LAYERS)
def test_layer_imports_only_layers_before_it(layer: str) -> None:
    allowed = set(LAYERS[: LAYERS.index(layer) + 1])
    modules = [m for m in (PACKAGE / f"{layer}.py", *_modules(PACKAGE / layer)) if m.exists()]
    assert modules, f"layer {layer!r} does not exist"
    for module in modules:
        assert _imported_layers(module) <= allowed, module


def test_every_module_belongs_to_a_layer() -> None:
    tops = {m.relative_to(PACKAGE).parts[0].removesuffix(".py") for m in _modules(PACKAGE)}
    assert tops - {"__init__", "__main__"} == set(LAYERS)


def test_the_picture_of_the_layers_is_true() -> None:
    picture = (ROOT / "docs/media/layers.svg").read_text(encoding="utf-8")
    drawn = re.findall(r'text-anchor="middle"[^>]*>(\w+)<', picture)
    assert drawn == LAYERS[::-1]


@pytest.mark.parametrize("name", ["calib", "eval"])
def test_data_folders_hold_no_python(name: str) -> None:
    assert (ROOT / name).is_dir()
    assert not list((ROOT / name).rglob("*.py"))


def test_tests_mirror_the_package() -> None:
    """But for those of whole systems, processors and browsers, which are of no module's."""
    tests = Path(__file__).parent
    folders = {module.parent.relative_to(tests) for module in _modules(tests)}
    assert {f.parts[0] for f in folders if f.parts and not (PACKAGE / f).is_dir()} == {
        *("families", "processors", "web")
    }


def test_every_package_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(project["tool"]["setuptools"]["packages"])
    on_disk = {
        ".".join(p.parent.relative_to(ROOT).parts)
        for p in _modules(PACKAGE)
        if p.name == "__init__.py"
    }
    assert listed - {"tts_compress._calib", "tts_compress._eval"} == on_disk
    folders = {".".join(p.parent.relative_to(ROOT).parts) for p in _modules(PACKAGE)}
    assert folders == on_disk, "a folder of modules has no __init__.py"


@pytest.mark.slow
def test_wheel_has_one_top_level_name_and_carries_the_data(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("tts_compress", "calib", "eval"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "-w", str(tmp_path), str(source)]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    if "setuptools" in built.stderr and built.returncode:
        pytest.skip(f"cannot build here: {built.stderr.strip().splitlines()[-1]}")
    assert built.returncode == 0, built.stderr
    assert "Warning" not in built.stdout + built.stderr, "users would see it, in `make quantize`"
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"tts_compress"}
    shipped = [p.relative_to(ROOT) for d in ("calib", "eval") for p in (ROOT / d).rglob("*.toml")]
    for path in shipped:
        assert f"tts_compress/_{path.as_posix()}" in names
    for path in (*(PACKAGE / "voices").glob("*"), *PACKAGE.glob("*/templates/*")):
        assert path.relative_to(ROOT).as_posix() in names
    for module in _modules(PACKAGE):
        assert module.relative_to(ROOT).as_posix() in names


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("tts_compress", {"torch", "onnxruntime", "onnx", "pydantic", "numpy", "piper"}),
        # An evaluation starts nine of these processes; SciPy alone takes each a second.
        ("tts_compress.evaluation.worker", {"torch", "onnxruntime", "scipy", "piper", "rich"}),
    ],
)
def test_import_loads_nothing_heavy(module: str, heavy: set[str]) -> None:
    command = f"import sys, {module}; print(*({heavy!r} & sys.modules.keys()))"
    run = subprocess.run(
        [sys.executable, "-c", command], check=True, capture_output=True, text=True
    )
    assert not run.stdout.split()


def test_compression_imports_only_core_dependencies() -> None:
    """`threadpoolctl` came with the extra `evaluate` alone, and without it nothing compressed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = {re.split(r"[<>=\s]", line)[0] for line in project["dependencies"]}
    for module in _modules(PACKAGE / "compression"):
        imported = _facts(module).needed
        if "torch" not in imported:  # modules for systems in torch are imported by need
            assert imported - sys.stdlib_module_names - {"tts_compress"} <= core, module


def test_public_names_resolve() -> None:
    assert len(set(tts_compress.__all__)) == len(tts_compress.__all__)
    for name in tts_compress.__all__:
        assert getattr(tts_compress, name) is not None
        assert name in dir(tts_compress)


def test_no_public_name_is_a_modules() -> None:
    """Importing `tts_compress.x` binds the name x to the module, whatever was public under it."""
    assert not set(tts_compress.__all__) & set(LAYERS)


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="squash"):
        _ = tts_compress.squash


def test_modules_are_small_documented_and_named_for_something() -> None:
    for module in _modules(PACKAGE):
        assert module.read_text(encoding="utf-8").count("\n") <= 500, module
        assert module.stem not in _NAMES_OF_NOTHING, module
        assert _facts(module).documented, module


def test_values_are_called_what_they_are() -> None:
    bindings = [
        f"{module.relative_to(PACKAGE)}:{line} {name}"
        for module in _modules(PACKAGE)
        for line, name in _facts(module).bindings
        if name in _NAMES_OF_ANYTHING
    ]
    assert not bindings


def test_a_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for module in _modules(PACKAGE):
        for name in _facts(module).classes:
            places.setdefault(name, []).append(str(module.relative_to(PACKAGE)))
    shared = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert len(shared) <= _MOST_SHARED_CLASS_NAMES, shared
