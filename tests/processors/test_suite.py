"""The ordinary tests of integer arithmetic, run on x86 without AVX512."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.processors.emulation import Processor

pytestmark = pytest.mark.processors

_PARTS = {
    "kernels": (
        "tests/numerics/test_kernels.py",
        "tests/onnx/quantize/test_worst_case.py",
        "tests/onnx/quantize/test_recurrent.py",
    ),
    "onnx": (
        "tests/numerics/test_affine.py",
        "tests/onnx/integer",
        "tests/onnx/quantize/test_convert.py",
    ),
    "torch": ("tests/torch/layers", "tests/compression/test_compress_module.py"),
    "qat": (
        "tests/qat/test_fake_quantize_activations.py",
        "tests/qat/test_fake_quantize_weights.py",
        "tests/qat/graph/test_network_rounding.py",
    ),
}


@pytest.mark.parametrize("part", _PARTS)
def test_part_of_the_suite(haswell: Processor, part: str) -> None:
    """They have no time limits: hypothesis has its profile for busy machines."""
    options = ["--quiet", "--tb=short", "-p", "no:cacheprovider", "--hypothesis-profile=ci"]
    try:
        haswell.run(["-m", "pytest", *options, "-m", "not slow", *_PARTS[part]])
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)
