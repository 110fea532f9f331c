"""Changes of low rank are added to the weights they change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.errors import ModelError
from tts_compress.models.gpt_sovits.checkpoint import Checkpoint, merge_lora

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable

_ATTENTION = "cfm.estimator.transformer_blocks.0.attn"
_WRAPPED = "cfm.base_model.model.estimator.transformer_blocks.0.attn"


@pytest.fixture
def base(sovits_tensors: Callable[..., dict[str, Any]]) -> Checkpoint:
    """Return a whole v3."""
    return Checkpoint(tensors=sovits_tensors("v3"), config={"model": {"of": "base"}}, version="v3")


@pytest.fixture
def changes(lora_tensors: Callable[..., dict[str, Any]]) -> Checkpoint:
    """Return changes of rank 3 to it."""
    return Checkpoint(
        tensors=lora_tensors(3),
        config={"model": {"of": "voice"}},
        version="v4",
        lora_rank=3,
    )


def test_changes_are_added(changes: Checkpoint, base: Checkpoint) -> None:
    merged = merge_lora(changes, base)
    assert (merged.version, merged.lora_rank) == ("v4", None)
    assert merged.config == changes.config
    assert merged.tensors.keys() == base.tensors.keys()
    for name in ("to_q", "to_out.0"):
        down = changes.tensors[f"{_WRAPPED}.{name}.lora_A.default.weight"].float()
        up = changes.tensors[f"{_WRAPPED}.{name}.lora_B.default.weight"].float()
        wanted = base.tensors[f"{_ATTENTION}.{name}.weight"].float() + torch.einsum(
            "or,ri->oi", up, down
        )
        found = merged.tensors[f"{_ATTENTION}.{name}.weight"]
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, wanted)
    kept = f"{_ATTENTION}.to_k.weight"
    assert torch.equal(merged.tensors[kept], base.tensors[kept])
    replaced = "bridge.0.weight"
    assert torch.equal(merged.tensors[replaced], changes.tensors[replaced])


def test_layer_behaves_as_with_the_change_beside_it(changes: Checkpoint, base: Checkpoint) -> None:
    """LoRA's own computation: the layer's output and the change's, one after the other."""
    name = f"{_ATTENTION}.to_q.weight"
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(3))
    down = changes.tensors[f"{_WRAPPED}.to_q.lora_A.default.weight"].float()
    up = changes.tensors[f"{_WRAPPED}.to_q.lora_B.default.weight"].float()
    beside = x @ base.tensors[name].float().T + (x @ down.T) @ up.T
    torch.testing.assert_close(x @ merge_lora(changes, base).tensors[name].T, beside)


def test_wrapped_weights_that_training_left_free_replace(
    changes: Checkpoint, base: Checkpoint
) -> None:
    given = torch.ones(6, 6).half()
    tensors = changes.tensors | {f"{_WRAPPED}.to_v.base_layer.weight": given}
    merged = merge_lora(replace(changes, tensors=tensors), base)
    assert torch.equal(merged.tensors[f"{_ATTENTION}.to_v.weight"], given)


def _dropped(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.pop(name)


def _put(name: str, *shape: int) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.update({name: torch.zeros(shape)})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_dropped(f"{_WRAPPED}.to_q.lora_A.default.weight"), "no counterpart '.lora_A"),
        (_dropped(f"{_WRAPPED}.to_q.lora_B.default.weight"), "no counterpart '.lora_B"),
        (_put(f"{_WRAPPED}.to_q.lora_A.default.weight", 2, 6), "of rank 3"),
        (_put(f"{_WRAPPED}.to_q.lora_A.default.weight", 3), "of rank 3"),
        (_put(f"{_WRAPPED}.to_q.lora_A.default.weight", 3, 8), r"of shape \(6, 8\).*\(6, 6\)"),
        (_put("bridge.0.weight", 8, 5, 1), r"'bridge.0.weight' of shape \(8, 5, 1\).*\(8, 4, 1\)"),
        (_put("bridge.1.weight", 8), r"'bridge.1.weight' of shape \(8,\).*model has none"),
    ],
)
def test_changes_to_another_network_are_refused(
    changes: Checkpoint,
    base: Checkpoint,
    spoil: Callable[[dict[str, Any]], None],
    message: str,
) -> None:
    tensors = dict(changes.tensors)
    spoil(tensors)
    with pytest.raises(ModelError, match=message):
        merge_lora(replace(changes, tensors=tensors), base)


def test_merged_weights_are_those_that_peft_merges() -> None:
    """Upstream wraps the estimator, loads the changes into it, and merges them."""
    peft: Any = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["to_q", "to_out.0"], r=3, lora_alpha=3)

    def network() -> Any:
        attention = torch.nn.ModuleDict(
            {"to_q": torch.nn.Linear(6, 8), "ff": torch.nn.Linear(8, 8)}
        )
        attention["to_out"] = torch.nn.ModuleList([torch.nn.Linear(8, 6)])
        return torch.nn.ModuleDict({"cfm": torch.nn.ModuleDict({"attn": attention})})

    torch.manual_seed(0)
    whole, wrapped = network(), network()
    wrapped.load_state_dict(whole.state_dict())
    base = Checkpoint(tensors=whole.state_dict(), config={}, version="v3")
    wrapped["cfm"] = peft.get_peft_model(wrapped["cfm"], settings)
    stored = {name: value for name, value in wrapped.state_dict().items() if "lora_" in name}
    for tensor in stored.values():
        tensor.normal_()
    changes = Checkpoint(tensors=stored, config={}, version="v3", lora_rank=3)
    wrapped.load_state_dict(stored, strict=False)
    wrapped["cfm"] = wrapped["cfm"].merge_and_unload()
    merged = merge_lora(changes, base).tensors
    wanted = wrapped.state_dict()
    assert merged.keys() == wanted.keys()
    assert not torch.equal(merged["cfm.attn.to_q.weight"], base.tensors["cfm.attn.to_q.weight"])
    for name, tensor in wanted.items():
        torch.testing.assert_close(merged[name], tensor)
