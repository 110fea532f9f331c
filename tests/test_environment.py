"""What the manifest says of the machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy

from tts_compress.environment import Processor, describe_environment, describe_processor

if TYPE_CHECKING:
    import pytest

_X86 = "processor\t: 0\nmodel name\t: Fast CPU\nflags\t\t: fpu avx2 avx512_vnni\n\nprocessor\t: 1\n"
_ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\n\n"


def _with_cpuinfo(monkeypatch: pytest.MonkeyPatch, text: str | None) -> Processor:
    def read(*_: object, **__: object) -> str:
        if text is None:
            raise FileNotFoundError
        return text

    monkeypatch.setattr("pathlib.Path.read_text", read)
    return describe_processor()


def test_x86_features_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _with_cpuinfo(monkeypatch, _X86)
    assert found.model == "Fast CPU"
    assert found.features == ("avx2", "avx512_vnni")
    assert found.has_integer_dot_product


def test_arm_features_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _with_cpuinfo(monkeypatch, _ARM)
    assert found.features == ("asimddp", "i8mm")
    assert not found.has_integer_dot_product


def test_system_without_cpuinfo_has_no_features(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _with_cpuinfo(monkeypatch, None)
    assert found.features == ()
    assert found.model
    assert found.cores >= 1


def test_environment_is_plain_data_and_names_versions() -> None:
    found = describe_environment()
    assert found.packages["numpy"] == numpy.__version__
    assert json.loads(json.dumps(found.to_dict()))["packages"] == found.packages
