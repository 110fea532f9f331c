"""Other exporters number their operators or leave weight norm in; the result is the same."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.graphs import make_node
from tts_compress.compression import compress
from tts_compress.models import load


def _numbered(model: onnx.ModelProto) -> None:
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"


def _with_weight_norm(model: onnx.ModelProto) -> None:
    """Replace `w` of some convolutions by `g * v / |v|`, as an export before folding has it."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = []
    for node in list(model.graph.node):
        module = node.name.strip("/").replace("/", ".").removesuffix(".Conv")
        if node.op_type == "Conv" and module.startswith(("dec.resblocks", "flow.")):
            stem = node.input[1]
            value = numpy_helper.to_array(tensors[stem])
            norm = np.sqrt(np.square(value).sum(axis=(1, 2), keepdims=True))
            for suffix, part in (("g", norm), ("v", 3 * value)):
                tensor = numpy_helper.from_array(part.astype(np.float32), f"{stem}_{suffix}")
                model.graph.initializer.append(tensor)
            nodes += [
                make_node("ReduceL2", f"{stem}_v", f"{stem}_n", axes=[1, 2]),
                make_node("Div", f"{stem}_v {stem}_n", f"{stem}_d"),
                make_node("Mul", f"{stem}_d {stem}_g", f"{stem}_w"),
            ]
            node.input[1] = f"{stem}_w"
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


@pytest.mark.slow
@pytest.mark.parametrize("change", [_numbered, _with_weight_norm])
def test_counts_are_those_of_the_plain_export(
    tiny_path: Path,
    tmp_path: Path,
    quick_recipe: Callable[[str], Path],
    change: Callable[[onnx.ModelProto], None],
) -> None:
    """By the recipe that names the most modules; to choose formats would need their times."""
    model: Any = onnx.load(tiny_path)
    change(model)
    onnx.save(model, tmp_path / "tiny.onnx")
    shutil.copy(tiny_path.with_name("tiny.onnx.json"), tmp_path)
    changed, plain = (
        compress(load(path), "int8", recipe=quick_recipe("int8"), quality="fast")
        for path in (tmp_path / "tiny.onnx", tiny_path)
    )
    assert changed.manifest is not None
    assert plain.manifest is not None
    assert changed.manifest.counts == plain.manifest.counts
    assert changed.synthesize("Hello.", seed=0).samples.std() > 0.01
