"""Other processors than this machine's: what is wrong there is wrong here, too.

An older x86 processor has fewer instructions than this one, and onnxruntime asks CPUID which. So a
copy of it that is told of fewer runs the older one's kernels, natively. All else is emulated by
qemu. Time cannot be measured on either. What they need is made once, in `.emulation`.
"""

import fcntl
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.processors.packages import NotAvailableError, run_tool, unpack

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
    """Return one of the processors in `OTHERS`, or this machine's as `native`.

    Raises:
        NotAvailableError: It cannot be had here.
    """
    if name == NATIVE.name:
        return NATIVE
    with _alone():
        return _OPENERS[name]()


_X86_FLAGS = (
    "fpu cx8 cmov mmx fxsr sse sse2 ht syscall nx rdtscp lm pni pclmulqdq ssse3 fma cx16 sse4_1 "
    "sse4_2 movbe popcnt aes xsave avx f16c rdrand lahf_lm abm bmi1 avx2 bmi2 erms"
)


def _x86_info(name: str, model: int, more: str = "") -> str:
    """Return what Linux tells of an Intel processor of the sixth family."""
    return "\n".join(
        [
            "vendor_id\t: GenuineIntel",
            "cpu family\t: 6",
            f"model\t\t: {model}",
            f"model name\t: Intel Core Processor ({name})",
            "stepping\t: 4",
            f"flags\t\t: {_X86_FLAGS} {more}".rstrip(),
        ]
    )


_X86 = {
    "haswell": _x86_info("Haswell", 60),
    "skylake": _x86_info("Skylake", 85, "avx512f avx512dq avx512cd avx512bw avx512vl"),
}
"""The last generation of Intel's without AVX512, and the first with it, which has no VNNI."""

# What qemu lacks is left out by name: it would warn of it at each start.
_HASWELL = "Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm"

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


def _older(name: str) -> Processor:
    """Return an earlier x86 processor, which runs this environment's onnxruntime natively."""
    _need_x86(name)
    root = _made(name, lambda folder: _fill_older(folder, name))
    paths = filter(None, [str(root), os.environ.get("PYTHONPATH")])
    variables = {
        "EARLIER": name,
        "CPUINFO": str(root / "proc" / "cpuinfo"),
        "LD_PRELOAD": str(root / "cpuid.so"),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    stated = [f"{variable}={value}" for variable, value in variables.items()]
    return Processor(name=name, command=("env", *stated, sys.executable))


def _need_x86(name: str) -> None:
    if platform.machine() != "x86_64":
        raise NotAvailableError(
            f"{name} runs this x86_64 environment; this machine is {platform.machine()}"
        )


def _fill_older(folder: Path, name: str) -> None:
    """Write a copy of onnxruntime whose questions to the processor the file `cpuid.c` answers."""
    source = str(Path(__file__).with_name("cpuid.c"))
    run_tool(["cc", "-O2", "-shared", "-fPIC", "-o", str(folder / "cpuid.so"), source, "-ldl"])
    specification = importlib.util.find_spec("onnxruntime")
    assert specification is not None
    assert specification.origin is not None
    copy = folder / "onnxruntime"
    shutil.copytree(Path(specification.origin).parent, copy, ignore=_COMPILED_PYTHON)
    for library in copy.glob("capi/*.so"):
        _trap_cpuid(library)
    _describe(folder, _X86[name])


_COMPILED_PYTHON = shutil.ignore_patterns("__pycache__")
_CPUID, _TRAP = b"\x0f\xa2", b"\xcc\x90"
"""Machine code of the instruction, and of a breakpoint as long."""


def _trap_cpuid(library: Path) -> None:
    """Put a breakpoint in the place of each CPUID of a library."""
    content = bytearray(library.read_bytes())
    listing = run_tool(["objdump", "-dF", "--no-show-raw-insn", str(library)])
    # Functions have their offset in the file; instructions have their address.
    header = re.compile(r"^([0-9a-f]+) <.*> \(File Offset: 0x([0-9a-f]+)\):$")
    shift = 0
    for line in listing.splitlines():
        if match := header.match(line):
            shift = int(match[2], 16) - int(match[1], 16)
        elif line.endswith("\tcpuid"):
            offset = int(line.partition(":")[0], 16) + shift
            assert content[offset : offset + 2] == _CPUID
            content[offset : offset + 2] = _TRAP
    library.write_bytes(content)


def emulated_haswell() -> Processor:
    """Return Haswell in qemu, for libraries besides onnxruntime.

    Raises:
        NotAvailableError: It cannot be emulated here.
    """
    _need_x86("haswell")
    with _alone():
        qemu = _qemu("x86_64")
        return _in_qemu(_made("haswell-qemu", lambda folder: _fill_emulated(folder, qemu)), qemu)


def _in_qemu(root: Path, qemu: str) -> Processor:
    command = (qemu, "-cpu", _HASWELL, "-L", str(root), sys.executable)
    return Processor(name="haswell", command=command)


def _fill_emulated(folder: Path, qemu: str) -> None:
    """Write a root with nothing in it, so that everything else is this machine's."""
    _describe(folder, _X86["haswell"])
    if warning := _in_qemu(folder, qemu).run(["-c", ""]).strip():
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


_OPENERS: dict[str, Callable[[], Processor]] = {
    **{name: partial(_older, name) for name in _X86},
    "cortex-a76": _cortex_a76,
}
OLDER, OTHERS = tuple(_X86), tuple(_OPENERS)
"""Names of the processors that run this environment, and of all that are not this machine's."""


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


_MAKERS = ("emulation.py", "packages.py", "cpuid.c")
"""Files of this folder that the cache follows from."""


def _made(name: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, filled on first use and again when anything of it changes."""
    here = Path(__file__).parent
    sources = (*(here / name for name in _MAKERS), ROOT / "constraints.txt")
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
