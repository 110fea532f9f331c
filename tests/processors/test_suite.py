"""The ordinary tests that multiply in integers, run on x86 without AVX512."""

import pytest

from tests.processors.emulation import Processor

pytestmark = pytest.mark.processors

_TESTS = (
    "tests/numerics/test_kernels.py",
    "tests/onnx/quantize/test_worst_case.py::test_without_protection_sums_saturate",
    "tests/onnx/quantize/test_recurrent.py"
    "::test_kernel_multiplies_the_weights_together_that_count_as_neighbours",
    "tests/onnx/quantize/test_recurrent.py::test_lstm_in_integers_is_near_what_its_definition_gives",
    "tests/onnx/quantize/test_convert.py::test_output_stays_near_and_counts_are_as_promised",
    "tests/onnx/integer/test_layers.py",
    "tests/onnx/integer/test_region.py::test_every_subset_of_the_convolutions_works",
    "tests/torch/layers/test_layers.py::test_linear_layers_multiply_the_codes",
    "tests/torch/layers/test_layers.py::test_convolutions_multiply_the_codes",
    "tests/torch/layers/test_layers.py::test_four_bits_multiply_what_the_codes_stand_for",
    *(
        f"tests/compression/test_compress_module.py::test_every_scheme_sounds_nearly_the_same[{name}]"
        for name in ("int8-dynamic", "int8-static", "bf16")
    ),
)
"""Tests whose result depends on a processor's kernels, once each: others would only take longer."""


def test_arithmetic_of_the_suite(in_qemu: Processor) -> None:
    """In one process: torch alone takes a quarter of a minute to be imported there."""
    options = ["--quiet", "--tb=short", "-p", "no:cacheprovider"]
    try:
        told = in_qemu.run(["-m", "pytest", *options, *_TESTS])
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)
    assert "passed" in told
