"""The processors that everything here is played on."""

from __future__ import annotations

import pytest

from tests.processors.emulation import EMULATED, Processor, open_processor
from tests.processors.packages import NotAvailableError


@pytest.fixture(scope="session")
def haswell() -> Processor:
    """Return an x86 processor without AVX512, or skip."""
    return _open("haswell")


@pytest.fixture(scope="module", params=EMULATED)
def processor(request: pytest.FixtureRequest) -> Processor:
    """Return each emulated processor, or skip."""
    return _open(request.param)


def _open(name: str) -> Processor:
    try:
        return open_processor(name)
    except NotAvailableError as error:
        pytest.skip(f"{name} cannot be emulated: {error}")
