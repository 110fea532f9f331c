"""Operators, in their order, and the branches and loop bodies they hold."""

from collections.abc import Sequence

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from tests.graphs import make_body, make_node
from tts_compress.errors import QuantizationError
from tts_compress.onnx.nodes import attribute, bodies, rename_read, sort_nodes, tensors_read


def _is_ordered(nodes: Sequence[onnx.NodeProto]) -> bool:
    made = {name for node in nodes for name in node.output}
    seen: set[str] = set()
    for node in nodes:
        if any(name in made and name not in seen for name in node.input):
            return False
        seen |= set(node.output)
    return True


@given(
    parents=st.lists(st.lists(st.integers(0, 30), max_size=3), min_size=1, max_size=30),
    data=st.data(),
)
def test_any_shuffled_graph_is_put_in_order(parents: list[list[int]], data: st.DataObject) -> None:
    nodes = [
        helper.make_node("N", [f"t{p % i}" for p in needs] if i else [], [f"t{i}"])
        for i, needs in enumerate(parents)
    ]
    ordered = sort_nodes(data.draw(st.permutations(nodes)))
    assert _is_ordered(ordered)
    assert sorted(n.output[0] for n in ordered) == sorted(n.output[0] for n in nodes)
    assert sort_nodes(nodes) == nodes  # a valid order is kept


def test_cycle_is_our_own_error() -> None:
    nodes = [make_node("N", "b", "a"), make_node("N", "a", "b")]
    with pytest.raises(QuantizationError, match="cycle"):
        sort_nodes(nodes)


def test_every_operator_that_can_hold_graphs_is_looked_into() -> None:
    """By the standard, in all its versions; operators of other domains may hold some as well."""
    kinds = {onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS}
    body = make_body([make_node("Neg", "x", "z")], {}, {"z": None})
    holding = {
        (schema.domain, schema.name)
        for schema in onnx.defs.get_all_schemas_with_history()
        if kinds.intersection(attribute.type for attribute in schema.attributes.values())
    }
    assert ("", "Loop") in holding
    for domain, name in holding | {("ai.onnx", "If"), ("com.microsoft", "BeamSearch")}:
        assert bodies(make_node(name, "x", "y", domain=domain, decoder=body)) == [body]
    assert bodies(make_node("Neg", "x", "y")) == []


def test_tensors_of_a_body_keep_their_names() -> None:
    """The runtime allows a body an input with the name of a tensor around it."""
    body = make_body([make_node("Add", "h c", "end")], {"h": None}, {"end": None})
    loop = make_node("Loop", "n - h", "y", body=body)
    rename_read(loop, {"h": "new", "c": "other"})
    (inner,) = bodies(loop)
    assert list(inner.node[0].input) == ["h", "other"]
    assert tensors_read(loop) == {"n", "new", "other"}


def test_attributes_are_texts_and_tuples() -> None:
    node = make_node("Conv", "x w", "y", auto_pad="NOTSET", pads=[1, 2])
    assert attribute(node, "auto_pad", "") == "NOTSET"
    assert attribute(node, "pads", (0, 0)) == (1, 2)
