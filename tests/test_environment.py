"""The machine as manifests describe it."""

import json

import numpy
import pytest

from tts_compress.environment import Processor, describe_environment, describe_processor

_X86 = "processor\t: 0\nmodel name\t: Fast CPU\nflags\t\t: fpu avx2 avx512_vnni\n\nprocessor\t: 1\n"
_ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\n\n"


def _with_cpuinfo(monkeypatch: pytest.MonkeyPatch, text: str | None) -> Processor:
    def read(*_: object, **__: object) -> str:
        if text is None:
            raise FileNotFoundError
        return text

    monkeypatch.setattr("pathlib.Path.read_text", read)
    return describe_processor()


def test_features_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _with_cpuinfo(monkeypatch, _X86)
    assert found.model == "Fast CPU"
    assert found.features == ("avx2", "avx512_vnni")
    assert found.integer_kernels == "AVX512-VNNI"
    found = _with_cpuinfo(monkeypatch, _ARM)
    assert found.features == ("asimd", "asimddp", "i8mm")
    assert found.integer_kernels == "I8MM"
    found = _with_cpuinfo(monkeypatch, None)
    assert found.features == ()
    assert found.integer_kernels == "unknown"
    assert not found.adds_in_16_bits  # unknown, so no warning
    assert found.model
    assert found.cores >= 1


@pytest.mark.parametrize(
    ("architecture", "features", "narrow"),
    [
        ("x86_64", ("avx2",), True),
        ("AMD64", ("avx2", "avx512_bf16"), True),
        ("x86_64", ("avx2", "avx_vnni"), False),
        ("x86_64", ("avx2", "avx512_vnni"), False),
        ("x86_64", ("amx_int8",), False),
        ("aarch64", ("asimd",), False),
    ],
)
def test_sums_are_of_16_bits_on_x86_without_vnni(
    architecture: str, features: tuple[str, ...], narrow: bool
) -> None:
    processor = Processor(architecture=architecture, model="", cores=1, features=features)
    assert processor.adds_in_16_bits == narrow
    assert processor.is_x86 == (architecture != "aarch64")


def test_environment_is_plain_data_and_names_versions() -> None:
    found = describe_environment()
    assert found["packages"]["numpy"] == numpy.__version__
    assert json.loads(json.dumps(found)) == found
