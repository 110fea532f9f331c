"""The log records a setting's effect, not the request."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch

from tts_compress.qat import trainer
from tts_compress.qat.trainer import matmul_precision
from tts_compress.torch.devices import gpu_load

_CPU = torch.device("cpu")


def _units(*formats: str) -> Callable[[str, torch.device], torch.Tensor]:
    """Return a function that multiplies like hardware with such number formats."""

    def multiply(wanted: str, _device: torch.device) -> torch.Tensor:
        return torch.tensor(0.1 if wanted in formats else 0.0)

    return multiply


@pytest.mark.parametrize(
    ("wanted", "formats", "told"),
    [
        ("highest", ("high", "medium"), "highest: FP32"),
        ("high", ("high", "medium"), "high: TF32"),
        ("medium", ("high", "medium"), "medium: bfloat16 products"),
        ("high", ("medium",), "high: no effect on this hardware, FP32"),
        ("medium", (), "medium: no effect on this hardware, FP32"),
    ],
)
def test_effect_is_what_products_show(
    monkeypatch: pytest.MonkeyPatch,
    wanted: Literal["highest", "high", "medium"],
    formats: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.setattr(trainer, "_product", _units(*formats))
    with matmul_precision(wanted, _CPU) as effect:
        assert effect.startswith(told)


@pytest.mark.parametrize("wanted", ["highest", "high", "medium"])
def test_setting_lasts_for_a_block(wanted: Literal["highest", "high", "medium"]) -> None:
    with matmul_precision(wanted, _CPU) as effect:
        assert torch.get_float32_matmul_precision() == wanted
        assert effect.startswith(wanted)
    assert torch.get_float32_matmul_precision() == "highest"


def test_processors_have_no_load_of_a_gpu() -> None:
    assert gpu_load(_CPU) == {}
