"""Processor, GPUs and versions of packages, as recorded in every manifest and report."""

import hashlib
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tts_compress

# Features that decide which kernels a runtime picks.
_FEATURES = (
    *("avx2", "avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_int8", "amx_bf16", "amx_fp16"),
    *("asimd", "asimddp", "i8mm", "bf16", "fphp"),
)

_PACKAGES = (
    *("tts-compress", "numpy", "onnx", "onnxruntime", "piper-tts", "torch", "torchao"),
    *("f5-tts", "parler-tts", "pocket-tts", "transformers", "jiwer", "pocketsphinx"),
    *("faster-whisper", "ctranslate2", "onnx-asr"),
)

_IMPORT = re.compile(r"^\s*(?:from|import) tts_compress(?:\.| import )([\w.]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The CPU this process runs on."""

    architecture: str
    model: str
    cores: int
    features: tuple[str, ...]
    """Instruction-set features for integers and 16-bit floats."""

    @property
    def is_x86(self) -> bool:
        """True for x86 of 32 or 64 bits."""
        return self.architecture.lower() in {"x86_64", "amd64", "x86", "i386", "i686"}

    @property
    def adds_in_16_bits(self) -> bool:
        """True where kernels add two products u8 × s8 in 16 bits, which saturates: x86, no VNNI.

        False where the system does not list the features.
        """
        is_wide = {"avx_vnni", "avx512_vnni", "amx_int8"} & set(self.features)
        return self.is_x86 and bool(self.features) and not is_wide

    @property
    def integer_kernels(self) -> str:
        """Instructions by which runtimes multiply 8-bit integers, for people."""
        names = {
            "amx_int8": "AMX",
            "avx512_vnni": "AVX512-VNNI",
            "avx_vnni": "AVX-VNNI",
            "avx2": "AVX2 without VNNI",
            "i8mm": "I8MM",
            "asimddp": "NEON with dot products",
            "asimd": "NEON",
        }
        return next(
            (name for feature, name in names.items() if feature in self.features), "unknown"
        )


def describe_processor() -> Processor:
    """Return the CPU as the operating system describes it."""
    fields: dict[str, str] = {}
    with suppress(OSError):  # a system without /proc
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return Processor(
        architecture=platform.machine(),
        model=fields.get("model name", platform.processor() or "unknown"),
        cores=os.cpu_count() or 1,
        features=tuple(feature for feature in _FEATURES if feature in flags),
    )


@contextmanager
def open_nvml() -> Iterator[Any]:
    """Yield NVIDIA's management library; None without its package (extra `gpu`) or a driver."""
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # its errors have a class only where it is there
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def describe_gpus() -> list[dict[str, Any]]:
    """Return name, driver and newest CUDA of each NVIDIA GPU; none where NVML is not."""
    with open_nvml() as nvml:
        if nvml is None:
            return []
        release = nvml.nvmlSystemGetCudaDriverVersion_v2()
        shared = {
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "cuda": f"{release // 1000}.{release % 1000 // 10}",
        }
        gpus = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        return [{"name": nvml.nvmlDeviceGetName(gpu), **shared} for gpu in gpus]


def describe_environment() -> dict[str, Any]:
    """Return processor, GPUs and the versions of installed packages that compute, for JSON."""
    processor = describe_processor()
    shown = {"features": list(processor.features), "integer_kernels": processor.integer_kernels}
    gpus = describe_gpus()
    return {
        "processor": asdict(processor) | shown,
        **({"gpus": gpus} if gpus else {}),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: release for name in _PACKAGES if (release := installed_version(name))},
    }


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def code_hash(start: str) -> str:
    """Return the hash of a module's or a package's code and of all it imports from this package.

    In the module's own package only the modules that it imports count. Other packages count as a
    whole, because their modules are found by name, as metrics and families are.

    Args:
        start: Name of a package, or dotted name of a module in one: `evaluation`, `sweep.work`.
    """
    root = Path(tts_compress.__file__).parent
    package, dot, _ = start.partition(".")
    left, code = {start}, dict[str, bytes]()
    done = set[str]()
    while left:
        done.add(name := left.pop())
        path = root.joinpath(*name.split("."))
        for file in [path.with_suffix(".py"), *path.rglob("*.py")]:
            if file.is_file():
                code[file.relative_to(root).as_posix()] = content = file.read_bytes()
                for imported in _IMPORT.findall(content.decode("utf-8")):
                    top = imported.partition(".")[0]
                    left.add(imported if dot and top == package else top)
        left -= done
    digest = hashlib.sha256()
    for name in sorted(code):
        digest.update(f"{name}\n".encode() + code[name])
    return digest.hexdigest()
