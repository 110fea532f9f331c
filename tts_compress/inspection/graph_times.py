"""How long the components of an ONNX voice take while it speaks, by onnxruntime's own account."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tts_compress.onnx.noise import NOISE_PREFIX, feed_noise
from tts_compress.onnx.session import open_session, run_session

if TYPE_CHECKING:
    from collections.abc import Collection

    from tts_compress.models.base import GraphModel

__all__ = ["component_of", "graph_seconds"]

_KERNEL = "_kernel_time"


def graph_seconds(model: GraphModel, text: str, seed: int) -> dict[str | None, float]:
    """Return the seconds that the operators of each component take to speak a text.

    Args:
        model: The voice.
        text: Spoken twice; only the second time counts.
        seed: Of the noise.

    Returns:
        By component; under None what no component's name tells.

    Raises:
        TextError: The text cannot be spoken.
        ModelError: The graph cannot be run.
    """
    calls = list(model.calibration_calls([text], seed=seed))
    with TemporaryDirectory() as folder:
        session = open_session(
            feed_noise(model.graph()), model.spec, profile=Path(folder, "profile")
        )
        for call in [*calls, *calls]:
            run_session(session, call, model.spec)
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    return _by_component(events, len(calls), [*model.components()])


def _by_component(
    events: list[dict[str, Any]], calls: int, components: Collection[str]
) -> dict[str | None, float]:
    runs = sorted(event["ts"] for event in events if event["name"] == "model_run")
    seconds: dict[str | None, float] = dict.fromkeys([*components, None], 0.0)
    for event in events:
        operator = event["name"].removesuffix(_KERNEL)
        # What feeds noise stands in the place of one operator of the voice that draws it.
        fed = operator.startswith(NOISE_PREFIX)
        if operator != event["name"] and event["ts"] >= runs[calls] and not fed:
            name = component_of(operator, components)
            seconds[name] += event["dur"] / 1e6
    return seconds


def component_of(operator: str, components: Collection[str]) -> str | None:
    """Return the component that an operator's name tells, or None.

    torch names operators by scope (`/dec/conv_pre/Conv`); what was put around a weight goes by the
    weight's name (`voice.dec.conv_pre.weight.dequantized`). The runtime keeps both in the names of
    what it makes of them.

    Args:
        operator: Its name.
        components: What there is to choose from.
    """
    parts = operator.replace("/", ".").split(".")
    return next((part for part in parts if part in components), None)
