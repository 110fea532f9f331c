"""A module compressed in torch: what was saved here is as near to FP32 without AVX512."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.measures import snr_db
from tests.processors.emulation import NATIVE, Processor
from tests.processors.torch_player import CHANNELS, Stack
from tts_compress import compress, save_module

pytestmark = pytest.mark.processors

_SCHEMES = ("int8", "int8-static")

_LEAST_DB = 32

_EQUAL_DB = 50
"""Between two processors: codes are equal but for a few that lie between two."""

_PLAYER = Path(__file__).with_name("torch_player.py")


@pytest.fixture(scope="module")
def stack() -> Stack:
    """Return a seeded module."""
    torch.manual_seed(0)
    return Stack().eval()


@pytest.fixture(scope="module")
def inputs() -> torch.Tensor:
    """Return 40 steps of a batch of two."""
    return torch.randn(2, 40, CHANNELS, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def play(
    stack: Stack, inputs: torch.Tensor, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Processor], dict[str, torch.Tensor]]:
    """Return a function that returns each scheme's outputs on a processor."""
    folder = tmp_path_factory.mktemp("torch")
    torch.save(inputs, folder / "inputs.pt")
    for scheme in _SCHEMES:
        calibration = [inputs] if scheme == "int8-static" else None
        small = compress(stack, scheme=scheme, calibration=calibration)
        save_module(small, folder / f"{scheme}.safetensors")
    played: dict[str, dict[str, torch.Tensor]] = {}

    def answers(processor: Processor) -> dict[str, torch.Tensor]:
        if processor.name not in played:
            outputs = {scheme: folder / f"{processor.name}-{scheme}.pt" for scheme in _SCHEMES}
            jobs = [
                part
                for scheme, output in outputs.items()
                for part in (output, folder / f"{scheme}.safetensors")
            ]
            processor.run([_PLAYER, folder / "inputs.pt", *jobs])
            played[processor.name] = {name: torch.load(file) for name, file in outputs.items()}
        return played[processor.name]

    return answers


@pytest.mark.parametrize("scheme", _SCHEMES)
def test_a_scheme_is_near_enough(
    stack: Stack,
    inputs: torch.Tensor,
    play: Callable[[Processor], dict[str, torch.Tensor]],
    in_qemu: Processor,
    scheme: str,
) -> None:
    with torch.inference_mode():
        expected = stack(inputs).numpy()
    here, there = (play(which)[scheme].numpy() for which in (NATIVE, in_qemu))
    assert snr_db(expected, here) >= _LEAST_DB
    assert snr_db(expected, there) >= _LEAST_DB
    assert snr_db(here, there) >= _EQUAL_DB
