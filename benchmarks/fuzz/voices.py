"""Voices of two graphs whose contract is changed, opened, spoken and compressed."""

import json
import math
import random
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from benchmarks.fuzz.compare import DisagreementError, check_agreement
from benchmarks.fuzz.mutate import Kind, mutate_json
from tests.graphs import make_model, make_node
from tts_compress.compression import compress
from tts_compress.models import open_model
from tts_compress.models.base import Speaking

_CHANNELS = 16
_MOST_SAMPLES = 1 << 22

_OTHERS: Mapping[type, tuple[Any, ...]] = {
    str: (
        *("tokens", "mel", "frames", "length", "audio", "again", "codes", "bob", "lengths"),
        *("mask", "noise", "output", "step", "steps", "tones", "constant", "ids", "speaker"),
        *("uniform", "NFKD", "latent", "a", "", "vocoder.onnx", "voice.onnx"),
    ),
    int: (0, 1, 2, 3, 40, -1, 500, 10**6, 2**31, 2**40, 10**20),
    float: (0.0, 1, 0.5, -1.0, 1e9, 1e300, 1e-300),
    list: ([], [1], [-1], [1_000_000, 1_000_000], [2**32, 2**32], [1] * 3_000, ["a", "b"]),
    bool: (True, False, 2),
}
"""Values of other places, and sizes beyond reason, by the type of what they replace."""


@cache
def _graphs() -> dict[str, bytes]:
    numbers = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return numbers.standard_normal(shape) / np.sqrt(_CHANNELS)

    whole = TensorProto.INT64
    first = [
        make_node("Gather", "a.weight tokens", "a"),
        make_node("Gather", "b.weight sid", "b"),
        make_node("Add", "a b", "c"),
        make_node("Mul", "c speed", "d"),
        make_node("Transpose", "d", "mel", perm=[0, 2, 1]),
        make_node("Size", "tokens", "length"),
        make_node("Add", "tokens tokens", "frames"),
        make_node("Cast", "frames", "codes", to=TensorProto.INT32),
    ]
    second = [
        make_node("Conv", "mel p.weight", "p", pads=[1, 1]),
        make_node("Add", "p noise", "q"),
        make_node("Tanh", "q", "again"),
        make_node("ConvTranspose", "again s.weight", "s", strides=[4]),
        make_node("Cast", "step", "t", to=TensorProto.FLOAT),
        make_node("Add", "s t", "u"),
        make_node("ReduceMean", "mask", "v"),
        make_node("Mul", "u v", "audio"),
    ]
    mel = [1, _CHANNELS, "L"]
    text = {"tokens": (whole, [1, "L"]), "speed": [1], "sid": (whole, [1])}
    features = {"mel": mel, "frames": (whole, [1, "L"]), "length": (whole, [])}
    features |= {"codes": (TensorProto.INT32, [1, "L"])}
    round_of = {"mel": mel, "noise": [1, _CHANNELS, "N"], "step": (whole, [1]), "mask": [1, 1, "M"]}
    tables = {"a.weight": weight(512, _CHANNELS), "b.weight": weight(2, _CHANNELS)}
    kernels = {"p.weight": weight(_CHANNELS, _CHANNELS, 3), "s.weight": weight(_CHANNELS, 1, 4)}
    voice = make_model(first, text, features, tables, opset=17)
    vocoder = make_model(second, round_of, {"audio": [1, 1, "T"], "again": mel}, kernels, opset=17)
    files = {"voice.onnx": voice, "vocoder.onnx": vocoder}
    return {name: model.SerializeToString() for name, model in files.items()}


def _contract(folder: Path, dice: random.Random) -> Iterator[None]:
    for name, graph in _graphs().items():
        (folder / name).write_bytes(graph)
    table = tomllib.loads(Path(__file__).with_name("contract.toml").read_text("utf-8"))
    for _ in range(dice.choice((1, 1, 2, 3))):
        change = _exchanged if dice.random() < 0.8 else mutate_json
        table = change(table, dice)
    content = "".join(f"{json.dumps(key)} = {_toml(table[key])}\n" for key in table)
    (folder / "contract.toml").write_bytes(content.encode("utf-8", "surrogateescape"))
    yield
    voice: Any = open_model(f"contract:{folder / 'voice.onnx'}")
    if voice.speakers and dice.random() < 0.5:
        voice = voice.speaking_as(Speaking(speaker=dice.choice(list(voice.speakers))))
    text = dice.choice(("ids: 5 6 7", "abcd", "abcd" * 100))
    spoken = [voice.synthesize(text, seed=seed).samples for seed in (0, 0)]
    if not 0 < len(spoken[0]) < _MOST_SAMPLES or not np.array_equal(
        spoken[0], spoken[1], equal_nan=True
    ):
        raise DisagreementError(f"{len(spoken[0])} samples, or others for the same seed")
    if dice.random() < 0.3:
        small = compress(voice, "int8-weight-only")
        again: Any = open_model(small.save(folder / "out"))
        again = again.speaking_as(Speaking(speaker=voice.speaker)) if voice.speaker else again
        check_agreement(spoken[:1], [again.synthesize(text, seed=0).samples], "int8")


def _exchanged(table: Any, dice: random.Random) -> Any:
    """Return a table with another value of the same type in the place of one."""
    table = holder = json.loads(json.dumps(table))
    while isinstance(holder, dict | list) and holder:
        key = dice.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        value = holder[key]
        if holder is table and not isinstance(value, dict | list) and dice.random() < 0.8:
            continue
        if type(value) in _OTHERS and (not isinstance(value, list) or dice.random() < 0.3):
            holder[key] = dice.choice(_OTHERS[type(value)])
            break
        holder = value
    return table


def _toml(value: Any) -> str:
    """Return a value as TOML; what JSON calls null is a text."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(k)} = {_toml(v)}' for k, v in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps("" if value is None else value)


KINDS = {"contract": Kind(8, _contract)}
