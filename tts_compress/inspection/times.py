"""Each component's share of the time that a model takes to speak."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError
from tts_compress.models.base import GraphModel, Model, TorchModel
from tts_compress.models.interception import intercepted
from tts_compress.onnx.profile import kernel_seconds

if TYPE_CHECKING:
    from torch import nn

OTHER = "other"
"""Name of the time outside all components: text to phonemes, sampling, operators between them."""

_SHORT_TEXT = "Hello there."

_QUICK = 100_000_000
"""Weights of a model that speaks a short text within seconds."""

_LEVELS = 2
"""Levels of a component's submodules that are timed too: some systems call methods of a component
that have no hooks, and these call its submodules."""

Seconds = dict[str | None, float]
"""Seconds by component; under None those outside all components."""


def can_be_timed(model: Model) -> bool:
    """Return True if a model speaks and its components can be timed separately."""
    return isinstance(model, GraphModel | TorchModel)


def is_quick(model: Model) -> bool:
    """Return True if a model is small enough to be timed without being asked to."""
    return sum(part.parameters for part in model.components().values()) <= _QUICK


def time_shares(model: Model, text: str = _SHORT_TEXT, *, seed: int = 0) -> dict[str, float]:
    """Return each component's share of the time that speaking takes, in [0, 1].

    Args:
        model: One that speaks; one that needs a prompt has it.
        text: Spoken twice; only the second time counts, with nothing left to load or to prepare.
        seed: Seed of the noise.

    Returns:
        Shares by component, and under `OTHER` the share outside all of them; the sum is 1.

    Raises:
        ModelError: The model speaks no texts, or cannot speak, or has no prompt.
        TextError: It cannot speak this text.
    """
    if isinstance(model, GraphModel):
        seconds = _graph_seconds(model, text, seed)
    elif isinstance(model, TorchModel):
        seconds = _torch_seconds(model, text, seed)
    else:
        raise ModelError(f"'{model.spec}' speaks no texts, so nothing can be timed")
    total = sum(seconds.values())
    shares = {name: seconds.get(name, 0.0) / total for name in model.components()}
    return shares | {OTHER: seconds.get(None, 0.0) / total}


def component_of(operator: str, components: Collection[str]) -> str | None:
    """Return the component that an operator belongs to by its name, or None.

    torch names operators by scope (`/dec/conv_pre/Conv`); operators around a weight are named after
    it (`voice.dec.conv_pre.weight.dequantized`). The runtime keeps both in the names of operators
    that it fuses.
    """
    parts = operator.replace("/", ".").split(".")
    return next((part for part in parts if part in components), None)


def _graph_seconds(model: GraphModel, text: str, seed: int) -> Seconds:
    """Return the seconds that operators take, by onnxruntime's own profile.

    A graph that follows another is one component.
    """
    components = [name for name in model.components() if name not in model.parts]
    seconds: Seconds = dict.fromkeys([*components, None], 0.0)
    for name, part in model.parts.items():
        calls = list(model.calibration_calls([text], seed=seed, part=name))
        spent = kernel_seconds(model.graph(name), calls, part.spec)
        if name:
            seconds[name] = sum(spent.values())
            continue
        for operator, own in spent.items():
            seconds[component_of(operator, components)] += own
    return seconds


def _torch_seconds(model: TorchModel, text: str, seed: int) -> Seconds:
    """Return the seconds that calls take; one within another counts for the inner component."""
    model.synthesize(text, seed=seed)
    clock = _Clock()
    root = model.root()
    with ExitStack() as stack:
        for component, module, method in _timed_calls(model, root):
            stack.enter_context(intercepted(module, method, clock.timing(component)))
        with clock.inside(None):
            model.synthesize(text, seed=seed)
    return clock.seconds


def _timed_calls(model: TorchModel, root: "nn.Module") -> Iterator[tuple[str, "nn.Module", str]]:
    """Yield component, module and method of each timed call."""
    owners: dict[nn.Module, str] = {}
    for name in sorted(model.components(), key=len):  # a component inside another comes after it
        owners |= dict.fromkeys(_timed_modules(root.get_submodule(name), _LEVELS), name)
    for module, name in owners.items():
        yield name, module, "forward"
    for name, methods in model.named_calls().items():
        for method in methods:
            place, _, own = method.rpartition(".")
            yield name, root.get_submodule(place), own


def _timed_modules(module: "nn.Module", levels: int) -> Iterator["nn.Module"]:
    from torch import nn

    # Lists of modules are never called, their items are.
    inside = levels if isinstance(module, nn.ModuleList | nn.ModuleDict) else levels - 1
    if inside != levels:
        yield module
    if levels:
        for child in module.children():
            yield from _timed_modules(child, inside)


class _Clock:
    """Attributes each moment to the component that was entered last."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}
        self._inside: list[str | None] = []
        self._since = 0.0

    @contextmanager
    def inside(self, component: str | None) -> Iterator[None]:
        """Attribute the block to a component, or to none."""
        self._count()
        self._inside.append(component)
        try:
            yield
        finally:
            self._count()
            self._inside.pop()

    def timing(self, component: str) -> Callable[..., Any]:
        """Return a replacement of methods whose calls count for a component."""

        def call(method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
            with self.inside(component):
                return method(*arguments, **keywords)

        return call

    def _count(self) -> None:
        """Add the time since the last count to the component that is running."""
        now = perf_counter()
        if self._inside:
            component = self._inside[-1]
            self.seconds[component] = self.seconds.get(component, 0.0) + now - self._since
        self._since = now
