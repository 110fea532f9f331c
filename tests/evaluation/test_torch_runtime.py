"""Ways to run a torch model, on made-up modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.errors import EvaluationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch = pytest.importorskip("torch")
functional = torch.nn.functional


class _Attention(torch.nn.Module):  # type: ignore[name-defined, misc]
    """A block that takes down by which kernel it attends."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(8, 8)
        self.fused: list[bool] = []

    def forward(self, values: Any) -> Any:
        self.fused.append(torch.backends.cuda.flash_sdp_enabled())
        heads = self.project(values)[:, None]
        return functional.scaled_dot_product_attention(heads, heads, heads)[:, 0]


class _Model:
    """As much of a torch model as is asked for."""

    family = "f5-tts"
    spec, manifest, sample_rate = "made-up", None, 24_000

    def __init__(self, blocks: int = 3) -> None:
        torch.manual_seed(0)
        heavy = torch.nn.Module()
        heavy.blocks = torch.nn.ModuleList(_Attention() for _ in range(blocks))
        heavy.heads = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2 * blocks - 1))
        self._root = torch.nn.ModuleDict({"transformer": heavy, "vocoder": torch.nn.Linear(1, 1)})
        self._root.eval()

    def root(self) -> Any:
        """Return the live modules."""
        return self._root

    def speak(self) -> Any:
        """Return what the blocks make of a fixed input."""
        values = torch.linspace(-1, 1, 2 * 5 * 8).reshape(2, 5, 8)
        for block in self.blocks():
            values = block(values)
        return values

    def blocks(self) -> Any:
        """Return the list of blocks."""
        return self._root.get_submodule("transformer.blocks")

    def _nothing(self, *_: Any, **__: Any) -> None:
        pytest.fail("a runtime is switched by its modules alone")

    with_root = describe = components = files = save = synthesize = open_runtime = _nothing


@pytest.fixture
def model() -> _Model:
    return _Model()


@pytest.fixture
def switch_of() -> Iterator[Callable[[_Model], Any]]:
    """Return what switches a model; torch.compile is set as it was afterwards."""
    config = pytest.importorskip("torch._dynamo.config")
    from tts_compress.evaluation.torch_runtime import RuntimeSwitch

    names = (
        "fail_on_recompile_limit_hit",
        "allow_unspec_int_on_nn_module",
        "recompile_limit",
        "accumulated_recompile_limit",
    )
    made = []

    def make(model: Any) -> Any:
        made.append(RuntimeSwitch(model))
        return made[-1]

    with config.patch({name: getattr(config, name) for name in names}):
        yield make
        for switch in made:
            switch.choose(None)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Have torch.compile translate nothing, and return what it was asked for."""
    asked: list[dict[str, Any]] = []

    def compile_nothing(call: Callable[..., Any], **keywords: Any) -> Callable[..., Any]:
        asked.append(keywords)
        return lambda *inputs: call(*inputs) + 1

    monkeypatch.setattr(torch, "compile", compile_nothing)
    return asked


def test_plain_attention_is_without_the_fused_kernel_until_it_is_taken_back(
    model: _Model, switch_of: Callable[[_Model], Any]
) -> None:
    switch = switch_of(model)
    fused = model.speak()
    switch.choose("plain-attention")
    plain = model.speak()
    switch.choose(None)
    model.speak()
    for block in model.blocks():
        assert block.fused == [True, False, True]
    torch.testing.assert_close(plain, fused)


def test_the_blocks_are_compiled_once_and_can_be_switched(
    model: _Model, switch_of: Callable[[_Model], Any], compiled: list[dict[str, Any]]
) -> None:
    """For any length of input; the largest list of the heavy component holds the blocks."""
    switch = switch_of(model)
    expected = model.speak()
    for _ in range(2):
        switch.choose("compile")
        assert (model.speak() - expected).abs().max() > 0.5
        switch.choose("plain-attention")
        torch.testing.assert_close(model.speak(), expected)
        switch.choose(None)
        torch.testing.assert_close(model.speak(), expected)
    assert compiled == [{"dynamic": True}] * 3


@pytest.mark.usefixtures("compiled")
def test_what_the_compiler_gives_up_on_is_an_error(
    model: _Model, switch_of: Callable[[_Model], Any]
) -> None:
    """Otherwise it would be timed uncompiled under the name of the compiled runtime."""
    config = pytest.importorskip("torch._dynamo.config")
    before = config.recompile_limit
    switch_of(model).choose("compile")
    assert config.fail_on_recompile_limit_hit
    assert config.recompile_limit == 3 * before
    assert not config.allow_unspec_int_on_nn_module  # only for language models


@pytest.mark.usefixtures("compiled")
def test_layers_with_packed_weights_are_passed_over(
    model: _Model, switch_of: Callable[[_Model], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told to run as it is; others are not."""
    from tts_compress.evaluation import torch_runtime

    class Packed(torch.nn.Linear):  # type: ignore[name-defined, misc]
        """Stands for a layer of integers."""

    monkeypatch.setattr(torch_runtime, "IntegerLayer", Packed)
    disabled = []

    def disable(call: Callable[..., Any]) -> Callable[..., Any]:
        disabled.append(call)
        return call

    monkeypatch.setattr(torch.compiler, "disable", disable)
    model.blocks()[1].project = packed = Packed(8, 8).eval()
    switch_of(model).choose("compile")
    assert [getattr(call, "__self__", None) for call in disabled] == [packed]


def test_unknown_ways_and_components_without_blocks_are_refused(
    model: _Model, switch_of: Callable[[_Model], Any]
) -> None:
    with pytest.raises(EvaluationError, match="no way to run a model is named 'fast'"):
        switch_of(model).choose("fast")
    model.root()["transformer"] = torch.nn.Linear(1, 1)
    with pytest.raises(EvaluationError, match="Linear has no blocks that could be compiled"):
        switch_of(model)


def test_of_nested_lists_the_outermost_holds_the_blocks() -> None:
    from tts_compress.evaluation.torch_runtime import find_blocks

    def layer() -> Any:
        return torch.nn.ModuleDict({"ff": torch.nn.ModuleList([torch.nn.Linear(1, 1)] * 2)})

    component = torch.nn.Module()
    component.short = torch.nn.ModuleList([torch.nn.Linear(1, 1)])
    component.layers = torch.nn.ModuleList([layer(), layer()])
    component.empty = torch.nn.ModuleList()
    assert find_blocks(component) == list(component.layers)
