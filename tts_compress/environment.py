"""What a result was made with: processor and versions, recorded in every manifest and report."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["Environment", "Processor", "describe_environment", "describe_processor"]

# Features that decide which kernels a runtime picks.
_FEATURES = (
    "avx2",
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimddp",
    "i8mm",
    "bf16",
    "fphp",
)

_PACKAGES = (
    "tts-compress",
    "numpy",
    "onnx",
    "onnxruntime",
    "piper-tts",
    "torch",
    "torchao",
    "f5-tts",
    "parler-tts",
    "transformers",
    "jiwer",
    "pocketsphinx",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The CPU this process runs on."""

    architecture: str
    model: str
    cores: int
    features: tuple[str, ...]
    """Those instruction-set features that matter to integers and 16-bit floats."""

    @property
    def has_integer_dot_product(self) -> bool:
        """Whether u8 × s8 products accumulate in 32 bits without saturating on the way (VNNI)."""
        return bool({"avx_vnni", "avx512_vnni", "amx_int8"} & set(self.features))


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Processor, operating system and the versions of what computes."""

    processor: Processor
    system: str
    python: str
    packages: dict[str, str]

    def to_dict(self) -> dict[str, object]:
        """Return plain data that is equal after a round through JSON."""
        plain = asdict(self)
        plain["processor"]["features"] = list(self.processor.features)
        return plain


def describe_processor() -> Processor:
    """Return what the operating system says of the CPU."""
    import os

    fields = _cpuinfo()
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return Processor(
        architecture=platform.machine(),
        model=fields.get("model name", platform.processor() or "unknown"),
        cores=os.cpu_count() or 1,
        features=tuple(feature for feature in _FEATURES if feature in flags),
    )


def describe_environment() -> Environment:
    """Return the processor and the versions of the installed packages that compute."""
    return Environment(
        processor=describe_processor(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages={name: found for name in _PACKAGES if (found := _installed(name))},
    )


def _cpuinfo() -> dict[str, str]:
    """Return the fields of the first processor; empty where the system has no /proc."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
