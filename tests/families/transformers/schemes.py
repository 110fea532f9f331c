"""Parameters of tests that compress a voice by every scheme."""

from typing import Any

import pytest


def case(scheme: str, *values: Any) -> Any:
    """Return a test's parameters; one scheme in integers and one in floats are fast tests."""
    return pytest.param(
        scheme, *values, marks=[] if scheme in ("int8", "fp16") else [pytest.mark.slow]
    )
