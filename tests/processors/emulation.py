"""Other processors than this machine's, emulated by qemu: what is wrong there is wrong here, too.

Time cannot be measured on them. What they need is fetched once, into `.emulation`.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.processors.packages import NotAvailableError, run_tool, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).parents[2]
_CACHE = ROOT / ".emulation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """One on which Python can be run; what a program starts itself runs natively again."""

    name: str
    command: tuple[str, ...]
    """The words before Python's arguments."""

    environment: dict[str, str] = field(default_factory=dict)
    """Variables beside this process's own."""

    def run(self, arguments: Sequence[str | Path]) -> str:
        """Return the output of a Python program, errors included; it runs in the repository.

        Raises:
            RuntimeError: It failed; with all that it printed.
        """
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [*self.command, *(str(argument) for argument in arguments)],
            check=False,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout


NATIVE = Processor(name="native", command=(sys.executable,))


def open_processor(name: str) -> Processor:
    """Return one of the processors in `EMULATED`, or this machine's as `native`.

    Raises:
        NotAvailableError: It cannot be emulated here.
    """
    if name == NATIVE.name:
        return NATIVE
    with _alone():
        return _OPENERS[name]()


# Haswell is the last generation of Intel's before AVX512. What qemu lacks is left out by name:
# it would warn of it at each start.
_HASWELL = "Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm"
_HASWELL_FLAGS = (
    "fpu cx8 cmov mmx fxsr sse sse2 ht syscall nx rdtscp lm pni pclmulqdq ssse3 fma cx16 sse4_1 "
    "sse4_2 movbe popcnt aes xsave avx f16c rdrand lahf_lm abm bmi1 avx2 bmi2 erms"
)
_HASWELL_INFO = "\n".join(
    [
        "vendor_id\t: GenuineIntel",
        "cpu family\t: 6",
        "model\t\t: 60",
        "model name\t: Intel Core Processor (Haswell)",
        "stepping\t: 4",
        f"flags\t\t: {_HASWELL_FLAGS}",
    ]
)

# With dot products of 8-bit integers, without SVE and without products of matrices (i8mm).
_CORTEX_A76_INFO = "\n".join(
    [
        "BogoMIPS\t: 108.00",
        "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid "
        "asimdrdm lrcpc dcpop asimddp",
        "CPU implementer\t: 0x41",
        "CPU architecture: 8",
        "CPU variant\t: 0x4",
        "CPU part\t: 0xd0b",
        "CPU revision\t: 1",
    ]
)
_CORTEX_A76_PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6")


def _haswell() -> Processor:
    """Return an x86 processor with AVX2 only, which runs this very environment."""
    if platform.machine() != "x86_64":
        raise NotAvailableError(
            f"Haswell runs this x86_64 environment; this machine is {platform.machine()}"
        )
    qemu = _qemu("x86_64")
    return _x86(_made("haswell", lambda folder: _fill_haswell(folder, qemu)), qemu)


def _x86(root: Path, qemu: str) -> Processor:
    command = (qemu, "-cpu", _HASWELL, "-L", str(root), sys.executable)
    return Processor(name="haswell", command=command)


def _fill_haswell(folder: Path, qemu: str) -> None:
    """Write a root with nothing in it, so that everything else is this machine's."""
    _describe(folder, _HASWELL_INFO)
    if warning := _x86(folder, qemu).run(["-c", ""]).strip():
        raise NotAvailableError(f"qemu 7.2 or newer is needed: {warning.splitlines()[0]}")


def _cortex_a76() -> Processor:
    """Return an ARM64 processor, which runs a Python of its own: numpy and onnxruntime, no more."""
    qemu = _qemu("aarch64")
    root = _made("cortex-a76", lambda folder: _fill_arm64(folder, qemu))
    return _arm64(root, qemu)


def _arm64(root: Path, qemu: str) -> Processor:
    variables = {"PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(root / "site")}
    python = str(root / "usr" / "bin" / "python3")
    command = (qemu, "-cpu", "cortex-a76", "-L", str(root), python)
    return Processor(name="cortex-a76", command=command, environment=variables)


def _fill_arm64(folder: Path, qemu: str) -> None:
    """Write a root of ARM64 with Python, and the packages in the versions that tests use."""
    unpack(_CORTEX_A76_PACKAGES, folder, "arm64")
    _describe(folder, _CORTEX_A76_INFO)
    python = (folder / "usr" / "bin" / "python3").readlink().name.removeprefix("python")
    platforms = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
    command += ["--disable-pip-version-check", "--no-warn-conflicts", "--only-binary", ":all:"]
    command += ["--target", str(folder / "site"), "--python-version", python]
    command += [f"--platform={name}_aarch64" for name in platforms]
    run_tool([*command, "-c", str(ROOT / "constraints.txt"), "numpy", "onnxruntime"])
    _arm64(folder, qemu).run(["-c", "import numpy, onnxruntime"])  # also compiles the modules


_OPENERS: dict[str, Callable[[], Processor]] = {"haswell": _haswell, "cortex-a76": _cortex_a76}
EMULATED = tuple(_OPENERS)
"""Names of the processors that are not this machine's."""


def _qemu(architecture: str) -> str:
    """Return the path of an emulator: an installed one, else one that is unpacked."""
    names = (f"qemu-{architecture}-static", f"qemu-{architecture}")
    installed = next(filter(None, map(shutil.which, names)), None)
    if installed is not None:
        return installed
    try:
        root = _made("qemu", lambda folder: unpack(["qemu-user-static"], folder))
    except NotAvailableError as error:
        raise NotAvailableError(f"no {names[0]}: install qemu-user-static ({error})") from error
    found = next(filter(Path.is_file, (root / "usr" / "bin" / name for name in names)), None)
    if found is None:
        raise NotAvailableError(f"no {names[0]} in the package qemu-user-static; install it")
    return str(found)


def _describe(folder: Path, info: str) -> None:
    """Write what programs read of the processors: two of this kind.

    Without it they would read of this machine's, and on ARM64 onnxruntime crashes of that.
    """
    (folder / "proc").mkdir()
    text = "".join(f"processor\t: {number}\n{info}\n\n" for number in (0, 1))
    (folder / "proc" / "cpuinfo").write_text(text, encoding="utf-8")
    system = folder / "sys" / "devices" / "system" / "cpu"
    system.mkdir(parents=True)
    for name in ("possible", "present", "online"):
        (system / name).write_text("0-1\n", encoding="utf-8")


def _made(name: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, filled on first use and again when anything of it changes."""
    sources = (Path(__file__), Path(__file__).with_name("packages.py"), ROOT / "constraints.txt")
    newest = max(source.stat().st_mtime for source in sources)
    folder, partial = _CACHE / name, _CACHE / f"{name}.partial"
    if folder.is_dir() and folder.stat().st_mtime >= newest:
        return folder
    for old in (folder, partial):
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir()
    fill(partial)
    partial.rename(folder)
    os.utime(folder)
    return folder


@contextmanager
def _alone() -> Iterator[None]:
    """Let one process at a time fill the cache."""
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
