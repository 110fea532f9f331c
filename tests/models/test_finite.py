"""Weights of damaged files."""

from __future__ import annotations

import pytest

from tts_compress.errors import ModelError
from tts_compress.models.finite import check_finite

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_value_that_is_not_finite_is_named(value: float) -> None:
    weights = {"whole": torch.ones(2, dtype=torch.int64), "fine": torch.ones(2, 3)}
    check_finite(weights.items(), "a.safetensors")
    broken = torch.ones(2, 3).half()
    broken[1, 2] = value
    with pytest.raises(ModelError, match=r"'a\.safetensors': weight 'broken' has values that are"):
        check_finite((weights | {"broken": broken}).items(), "a.safetensors")
