"""The processors that everything here is played on."""

from __future__ import annotations

import pytest

from tests.processors.emulation import OTHERS, Processor, emulated_haswell, open_processor
from tests.processors.packages import NotAvailableError


@pytest.fixture(scope="session")
def haswell() -> Processor:
    """Return an x86 processor without AVX512, or skip."""
    return _open("haswell")


@pytest.fixture(scope="session")
def in_qemu() -> Processor:
    """Return the same in an emulator, for torch, or skip."""
    try:
        return emulated_haswell()
    except NotAvailableError as error:
        pytest.skip(f"haswell cannot be emulated: {error}")


@pytest.fixture(scope="module", params=OTHERS)
def processor(request: pytest.FixtureRequest) -> Processor:
    """Return each processor that is not this one, or skip."""
    return _open(request.param)


def _open(name: str) -> Processor:
    try:
        return open_processor(name)
    except NotAvailableError as error:
        pytest.skip(f"{name} cannot be had: {error}")
