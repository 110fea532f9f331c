"""Seeded changes of bytes, of JSON, and of ONNX graphs."""

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto

_NUMBERS = (0, -1, 1, 255, 1 << 31, 1 << 62, -(1 << 63), 10**30, 10**400, 0.5, 1e308, -1e-300)
_TEXTS = ("", " ", "\x00", "\x1b[2J", "\ud800", "../" * 40, "a" * 70_000, "ü\u202e", "nan", "{}")
_OTHERS: tuple[Any, ...] = (None, True, [], {}, [[]], {"a": {"b": [None]}}, float("nan"))
_ODD = (*_NUMBERS, *_TEXTS, *_OTHERS)
_WORDS = (b"\x00", b"\xff", b"[", b"{", b'"', b"\n", b".", b"=", b"9" * 30, b"[" * 3_000)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of input."""

    share: float
    """Cases of it, in proportion to those of other kinds."""

    case: Callable[[Path, random.Random], Iterator[None]]
    """Writes it into a folder, yields, and reads it as a command does; then an error of ours is a
    good end."""


def mutate_bytes(content: bytes, dice: random.Random, *, text: bool = False) -> bytes:
    """Return bytes with one to eight places changed; text stays mostly ASCII."""
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 8))):
        position = dice.randrange(len(changed) + 1)
        length = min(dice.choice((1, 1, 4, 64, 1024)), max(len(changed) - position, 0))
        way = dice.randrange(6)
        if way == 0 and position < len(changed) and (not text or dice.random() < 0.1):
            changed[position] ^= 1 << dice.randrange(8)
        elif way == 1:
            del changed[position : position + length]
        elif way == 2:
            changed[position:position] = changed[position : position + length] * dice.choice(
                (1, 2, 200)
            )
        elif way == 3:
            random_bytes = bytes(dice.choices(range(32, 127), k=length))
            changed[position : position + length] = random_bytes if text else dice.randbytes(length)
        elif way == 4:
            changed[position:position] = dice.choice(
                _WORDS[2 * text :] if dice.random() < 0.9 else _WORDS
            )
        elif dice.random() < 0.3:
            del changed[position:]
    return bytes(changed)


def mutate_json(document: Any, dice: random.Random) -> Any:
    """Return a document with one to three values removed, exchanged, repeated or nested."""
    document = json.loads(json.dumps(document))
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        holder, key = _place(document, dice)
        if holder is None:
            return copy.deepcopy(dice.choice(_ODD))
        way = dice.randrange(8)
        if way == 0:
            del holder[key]
        elif way == 1:
            holder[key] = [holder[key]] * dice.choice((0, 1, 2, 3_000))
        elif way == 2:
            holder[key] = _nested(holder[key], dice.choice((2, 50, 2_000)))
        elif way == 3 and isinstance(holder, dict):
            holder[dice.choice(_TEXTS)] = holder[key]
        else:
            holder[key] = copy.deepcopy(dice.choice(_ODD))  # the next change may be within
    return document


def mutate_file(content: bytes, dice: random.Random) -> bytes:
    """Return JSON with other values, an archive with other members, or other bytes."""
    if content.startswith(b"{"):
        text = json.dumps(mutate_json(json.loads(content), dice)).encode()
        return mutate_bytes(text, dice, text=True) if dice.random() < 0.25 else text
    if not zipfile.is_zipfile(io.BytesIO(content)) or dice.random() < 0.3:
        return mutate_bytes(content, dice)
    file = io.BytesIO()  # members that lie, in an archive that is whole
    with zipfile.ZipFile(io.BytesIO(content)) as original, zipfile.ZipFile(file, "w") as archive:
        for name in original.namelist():
            member, is_lying = original.read(name), name.endswith(".pkl") or dice.random() < 0.1
            archive.writestr(name, mutate_bytes(member, dice) if is_lying else member)
    return file.getvalue()


def mutate_graph(model: onnx.ModelProto, dice: random.Random) -> bytes:
    """Return an ONNX file whose nodes, tensors, types or bytes are changed."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for _ in range(dice.choice((1, 1, 2, 4))):
        with suppress(IndexError, ValueError):  # an earlier change has left none of these
            dice.choice(_GRAPH_CHANGES)(changed, dice)
    content: bytes = changed.SerializeToString()
    return mutate_bytes(content, dice) if dice.random() < 0.3 else content


def _place(document: Any, dice: random.Random) -> tuple[Any, Any]:
    """Return a random table or list of a document, and a key of it."""
    holder, key, value = None, None, document
    while isinstance(value, dict | list) and value and (holder is None or dice.random() < 0.8):
        holder = value
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = dice.choice(keys)
        value = holder[key]
    return holder, key


def _nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
        if levels > 500:  # json.dumps itself ends at a thousand
            break
    return value


def _drop(model: onnx.ModelProto, dice: random.Random) -> None:
    rows = _rows(model.graph, dice)
    del rows[dice.randrange(len(rows))]


def _repeat(model: onnx.ModelProto, dice: random.Random) -> None:
    rows = _rows(model.graph, dice)
    rows.append(dice.choice(rows))


def _rows(graph: onnx.GraphProto, dice: random.Random) -> Any:
    return dice.choice((graph.node, graph.initializer, graph.input, graph.output))


def _rewire(model: onnx.ModelProto, dice: random.Random) -> None:
    node, other = dice.choice(model.graph.node), dice.choice(model.graph.node)
    rows: Any = dice.choice((node.input, node.output))
    names = (*other.output, *other.input, "", "none", "\x1b[2J")
    rows[dice.randrange(len(rows))] = dice.choice(names)


def _operator(model: onnx.ModelProto, dice: random.Random) -> None:
    kinds = ("Conv", "Add", "Loop", "Gather", "Reshape", "Nothing", "")
    dice.choice(model.graph.node).op_type = dice.choice(kinds)


def _attribute(model: onnx.ModelProto, dice: random.Random) -> None:
    attribute = dice.choice([a for node in model.graph.node for a in node.attribute])
    number = dice.choice((0, -1, 1, 3, 1 << 31, (1 << 63) - 1, -(1 << 63)))
    if attribute.type == AttributeProto.INT:
        attribute.i = number
    elif attribute.type == AttributeProto.INTS and attribute.ints:
        attribute.ints[dice.randrange(len(attribute.ints))] = number
    else:
        attribute.type = dice.choice((AttributeProto.INT, AttributeProto.FLOATS))


def _tensor(model: onnx.ModelProto, dice: random.Random) -> None:
    tensor = dice.choice(model.graph.initializer)
    way = dice.randrange(5)
    if way == 0:
        tensor.dims[dice.randrange(len(tensor.dims))] = dice.choice((0, -1, 3, 1 << 31, 1 << 62))
    elif way == 1:
        tensor.data_type = dice.choice((0, 1, 6, 7, 8, 10, 16, 22, 77))
    elif way == 2:
        tensor.raw_data = mutate_bytes(tensor.raw_data, dice)
    elif way == 3:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "../x"), ("offset", "-1"), ("length", "9" * 20)):
            tensor.external_data.add(key=key, value=value if dice.random() < 0.5 else "0")
    else:
        tensor.name = dice.choice((*_TEXTS[:4], "x"))


def _value(model: onnx.ModelProto, dice: random.Random) -> None:
    stated = dice.choice([*model.graph.input, *model.graph.output]).type.tensor_type
    if dice.random() < 0.5:
        stated.elem_type = dice.choice((0, 1, 7, 8, 9, 16, 77))
    else:
        dice.choice(stated.shape.dim).dim_value = dice.choice((0, -1, 1 << 40, 3))


def _model(model: onnx.ModelProto, dice: random.Random) -> None:
    way = dice.randrange(4)
    if way == 0:
        del model.opset_import[:]
    elif way == 1:
        model.opset_import[0].version = dice.choice((0, -1, 7, 99, 1 << 40))
    elif way == 2:
        model.ir_version = dice.choice((0, 3, 99, 1 << 40))
    else:
        model.metadata_props.add(key="sample_rate", value=dice.choice(_TEXTS[:4]))


_GRAPH_CHANGES = (_drop, _repeat, _rewire, _operator, _attribute, _tensor, _value, _model)
