"""Every moment of speaking belongs to one component, or to none."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tts_compress.errors import ModelError
from tts_compress.inspection import components
from tts_compress.inspection.components import time_shares
from tts_compress.models.base import Component, Speaking, TorchModel
from tts_compress.models.speakers import NO_SPEAKERS

torch = pytest.importorskip("torch")


class _Time:
    """A clock that only work moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> _Time:
    found = _Time()
    monkeypatch.setattr(components, "perf_counter", found)
    return found


class _Work(torch.nn.Module):  # type: ignore[name-defined, misc]
    """Takes some time, then calls what is in it; has another method than `forward`."""

    def __init__(self, time: _Time, seconds: float, **parts: Any) -> None:
        super().__init__()
        self.time, self.seconds = time, seconds
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self) -> None:
        self.time.now += self.seconds
        for part in self.children():
            if not isinstance(part, torch.nn.ModuleList):
                part()

    def decode(self) -> None:
        self.time.now += self.seconds
        for part in self.children():
            part()


class _Voice:
    """Calls its components as `speak` does; the first time takes ten times as long."""

    family = "flute"
    spec = "flute:voice"
    manifest = None
    sample_rate = 16_000
    speakers = NO_SPEAKERS

    def __init__(self, time: _Time, root: Any, speak: Callable[[Any], None], names: str) -> None:
        self._time, self._root, self._speak, self._names = time, root, speak, names.split()
        self.spoken: list[tuple[str, int | None]] = []

    def root(self) -> Any:
        return self._root

    def components(self) -> Mapping[str, Component]:
        return {
            name: Component(name=name, role="", parameters=1, size_bytes=4) for name in self._names
        }

    def synthesize(self, text: str, *, seed: int | None = 0) -> Any:
        if not self.spoken:
            self._time.now += 1000
        self.spoken.append((text, seed))
        self._speak(self._root)

    def describe(self) -> dict[str, str]:
        return {"mood": "calm"}

    @property
    def speaking(self) -> Speaking:
        return Speaking()

    def speaking_as(self, _: Speaking) -> Any: ...

    def objectives(self) -> tuple[()]:
        return ()

    def named_calls(self) -> dict[str, tuple[str, ...]]:
        return {}

    def with_root(self, *_: Any) -> Any: ...
    def files(self) -> Any: ...
    def save(self, *_: Any, **__: Any) -> Any: ...
    def open_runtime(self, **_: Any) -> Any: ...


class _NamingVoice(_Voice):
    def named_calls(self) -> dict[str, tuple[str, ...]]:
        return {"vocoder": ("vocoder.decode",)}


def _root(time: _Time) -> Any:
    """Return components that take 1, 2 with 3.75 inside, twice 4, and 5 + 6 seconds."""
    inner = _Work(time, 3, deep=_Work(time, 0.5, deeper=_Work(time, 0.25)))
    parts = {
        "encoder": _Work(time, 1),
        "decoder": _Work(time, 2, inner=inner),
        "stack": torch.nn.Module(),
        "vocoder": _Work(time, 5, backbone=_Work(time, 6)),
    }
    parts["stack"].blocks = torch.nn.ModuleList([_Work(time, 4), _Work(time, 4)])
    return torch.nn.Sequential(OrderedDict(parts))


def _speak(root: Any) -> None:
    root.vocoder.time.now += 7  # outside of all
    root.encoder()
    root.decoder()
    for block in root.stack.blocks:
        block()
    root.vocoder.decode()


_NAMES = "encoder decoder decoder.inner stack.blocks vocoder"


def test_a_call_within_a_call_counts_for_the_inner_component(time: _Time) -> None:
    voice = _Voice(time, _root(time), _speak, _NAMES)
    assert isinstance(voice, TorchModel)
    assert components._torch_seconds(voice, "Hello.") == {
        None: 7 + 5,  # the method itself is not watched, what it calls is
        "encoder": 1,
        "decoder": 2,
        "decoder.inner": 3.75,
        "stack.blocks": 8,
        "vocoder": 6,
    }
    assert voice.spoken == [("Hello.", 0)] * 2


def test_a_method_that_the_family_names_counts_as_a_whole(time: _Time) -> None:
    voice = _NamingVoice(time, _root(time), _speak, _NAMES)
    found = components._torch_seconds(voice, "Hello.")
    assert (found["vocoder"], found[None]) == (11, 7)


def test_shares_are_of_the_whole_and_name_the_rest(time: _Time) -> None:
    voice = _NamingVoice(time, _root(time), _speak, f"{_NAMES} stack")
    found = time_shares(voice)
    assert list(found) == [*_NAMES.split(), "stack", "other"]
    assert found["vocoder"] == pytest.approx(11 / 32.75)
    assert found["stack"] == 0
    assert found["other"] == pytest.approx(7 / 32.75)
    assert sum(found.values()) == pytest.approx(1)


def test_modules_are_left_as_they_were_also_after_an_error(time: _Time) -> None:
    root = _root(time)

    def fail_the_second_time(found: Any) -> None:
        _speak(found)
        if len(voice.spoken) > 1:
            raise ModelError("out of breath")

    voice = _NamingVoice(time, root, fail_the_second_time, _NAMES)
    before = {name: dict(vars(part)) for name, part in root.named_modules()}
    with pytest.raises(ModelError, match="out of breath"):
        components._torch_seconds(voice, "Hello.")
    assert {name: dict(vars(part)) for name, part in root.named_modules()} == before


def test_an_error_within_a_component_ends_its_time(time: _Time) -> None:
    """Some systems go on after an error of one of their parts."""
    root = _root(time)

    def break_off() -> None:
        time.now += 1
        raise ValueError

    def speak(found: Any) -> None:
        try:
            found.encoder()
        except ValueError:
            time.now += 2

    root.encoder.forward = break_off
    voice = _Voice(time, root, speak, "encoder")
    assert components._torch_seconds(voice, "Hello.") == {"encoder": 1, None: 2}
