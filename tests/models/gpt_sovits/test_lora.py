"""Changes of low rank are added to the weights they change, as upstream adds them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tts_compress.errors import ModelError

torch = pytest.importorskip("torch")

from tts_compress.models.gpt_sovits.checkpoint import Checkpoint  # noqa: E402
from tts_compress.models.gpt_sovits.loading import fill, merge_lora  # noqa: E402

_FILE = Path("a.pth")
_LINEAR = "cfm.to_q"
_WRAPPED = "cfm.base_model.model.to_q"


def _synthesizer() -> Any:
    torch.manual_seed(0)
    layers = {name: torch.nn.Linear(6, 8) for name in ("to_q", "to_k", "to_v", "ff")}
    layers["to_out"] = torch.nn.ModuleList([torch.nn.Linear(8, 6)])
    codebook = torch.nn.Conv1d(4, 8, 1)
    return torch.nn.ModuleDict({"cfm": torch.nn.ModuleDict(layers), "bridge": codebook})


@pytest.fixture
def changes() -> Checkpoint:
    """Return changes of rank 3 to it, as training saves them: what it did not freeze."""
    generator = torch.Generator().manual_seed(1)
    shapes: dict[str, tuple[int, ...]] = {"bridge.weight": (8, 4, 1)}
    for name, (wide, high) in dict.fromkeys(("to_q", "to_k", "to_v"), (6, 8)).items():
        shapes[f"cfm.base_model.model.{name}.lora_A.default.weight"] = (3, wide)
        shapes[f"cfm.base_model.model.{name}.lora_B.default.weight"] = (high, 3)
    shapes["cfm.base_model.model.to_out.0.lora_A.default.weight"] = (3, 8)
    shapes["cfm.base_model.model.to_out.0.lora_B.default.weight"] = (6, 3)
    tensors = {n: torch.randn(s, generator=generator).half() for n, s in shapes.items()}
    return Checkpoint(tensors=tensors, config={}, version="v4", lora_rank=3)


def test_changes_are_added(changes: Checkpoint) -> None:
    pytest.importorskip("peft")
    vits, before = _synthesizer(), _synthesizer()
    # Statistics that training updates are saved, too.
    tensors = changes.tensors | {"bridge._codebook.cluster_size": torch.ones(2)}
    merge_lora(vits, Checkpoint(tensors=tensors, config={}, lora_rank=3), _FILE)
    assert vits.state_dict().keys() == before.state_dict().keys()
    assert all(parameter.requires_grad for parameter in vits.parameters())
    down = changes.tensors[f"{_WRAPPED}.lora_A.default.weight"].float()
    up = changes.tensors[f"{_WRAPPED}.lora_B.default.weight"].float()
    wanted = before.get_parameter(f"{_LINEAR}.weight") + up @ down
    torch.testing.assert_close(vits.get_parameter(f"{_LINEAR}.weight"), wanted)
    assert vits.cfm.ff.weight.equal(before.cfm.ff.weight)
    assert vits.bridge.weight.equal(changes.tensors["bridge.weight"].float())


def _dropped(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.pop(name)


def _put(name: str, *shape: int) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.update({name: torch.zeros(shape)})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_dropped(f"{_WRAPPED}.lora_A.default.weight"), "lacks '.*to_q.lora_A"),
        (_dropped(f"{_WRAPPED}.lora_B.default.weight"), "lacks '.*to_q.lora_B"),
        (_put(f"{_WRAPPED}.lora_A.default.weight", 2, 6), "another shape of '.*lora_A"),
        (_put(f"{_WRAPPED}.lora_A.default.weight", 3, 8), "another shape of '.*lora_A"),
        (_put("bridge.weight", 8, 5, 1), "another shape of 'bridge.weight'"),
        (_put("bridge.1.weight", 8), "the unknown 'bridge.1.weight'"),
    ],
)
def test_changes_to_another_network_are_refused(
    changes: Checkpoint, spoil: Callable[[dict[str, Any]], None], message: str
) -> None:
    pytest.importorskip("peft")
    spoil(changes.tensors)
    with pytest.raises(ModelError, match=rf"'a\.pth' .*{message}"):
        merge_lora(_synthesizer(), changes, _FILE)


def test_rank_of_any_size_takes_no_memory(changes: Checkpoint) -> None:
    pytest.importorskip("peft")
    with pytest.raises(ModelError, match="another shape of"):
        merge_lora(
            _synthesizer(), Checkpoint(tensors=changes.tensors, config={}, lora_rank=10**10), _FILE
        )


def test_weights_fill_a_network_in_fp32_and_must_be_finite() -> None:
    with torch.device("meta"):
        network = torch.nn.Linear(2, 1)
    state = {"weight": torch.ones(1, 2).half(), "bias": torch.zeros(1), "other": torch.ones(1)}
    fill(network, state, _FILE)
    assert network.weight.dtype == torch.float32
    state["bias"] += 1  # it is a copy, for the file may change
    assert network.bias.item() == 0
    with pytest.raises(ModelError, match=r"'a\.pth' has the unknown 'other'"):
        fill(network, state, _FILE, strict=True)
    for value in (float("nan"), float("inf")):
        with pytest.raises(ModelError, match=r"'a\.pth': weight 'bias' has values that are not"):
            fill(network, state | {"bias": torch.tensor([value])}, _FILE)
