"""Convert a graph of fixed sizes for LiteRT (`.tflite`) or ExecuTorch (`.pte`), through torch.

pip install onnx2torch torchvision litert-torch executorch
tts-compress export demo --fixed 128 --output out/demo-fixed
python examples/fixed/convert.py out/demo-fixed/fixed/sound-128.onnx out/sound-128.tflite

FP32 graphs: onnx2torch knows no rounding to codes, and both runtimes have quantizers of their own.
What is printed is how far the file's sound in its runtime is from onnxruntime's, on random frames.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch


def traced(path: Path, inputs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return a graph as a module of torch's own operators, and the inputs it was traced with."""
    from onnx2torch import convert
    from torch.fx.experimental.proxy_tensor import make_fx

    arguments = tuple(torch.from_numpy(value) for value in inputs.values())
    with torch.no_grad():
        module = torch.jit.trace(convert(onnx.load(path)).eval(), arguments, check_trace=False)
        frozen = torch.jit.freeze(module.eval())  # bounds of slices become numbers

        def run(*values: Any) -> Any:
            return frozen(*values)

        older = torch.ops.aten._convolution.default  # noqa: SLF001  the operator's name
        return make_fx(run, {older: _convolution})(*arguments), arguments


def _convolution(*arguments: Any) -> Any:
    """Return a convolution by the operator that converters know, of torch's older one."""
    return torch.ops.aten.convolution(*arguments[:9])


def to_litert(path: Path, target: Path, inputs: Mapping[str, Any]) -> Callable[[], Any]:
    """Write a `.tflite`; return a function that runs it on the inputs."""
    import litert_torch
    from ai_edge_litert.interpreter import Interpreter

    litert_torch.convert(*traced(path, inputs)).export(str(target))
    runner = Interpreter(str(target))
    runner.allocate_tensors()

    def run() -> Any:
        # By their names, which end with their numbers.
        details = sorted(runner.get_input_details(), key=lambda each: each["name"])
        for detail, value in zip(details, inputs.values(), strict=True):
            runner.set_tensor(detail["index"], value)
        runner.invoke()
        return runner.get_tensor(runner.get_output_details()[0]["index"])

    return run


def to_executorch(path: Path, target: Path, inputs: Mapping[str, Any]) -> Callable[[], Any]:
    """Write a `.pte` for XNNPACK; return a function that runs it on the inputs."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    module, arguments = traced(path, inputs)
    program = torch.export.export(module, arguments, strict=False)
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    target.write_bytes(lowered.to_executorch().buffer)
    method = Runtime.get().load_program(target).load_method("forward")

    def run() -> Any:
        return method.execute(list(arguments))[0].numpy()

    return run


def distance_db(path: Path, target: Path) -> float:
    """Convert a graph; return the ratio of its sound to what it differs by, in dB."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    random, inputs = np.random.default_rng(0), dict[str, Any]()
    for value in session.get_inputs():
        frames = random.standard_normal(value.shape).astype(np.float32)
        inputs[value.name] = np.ones_like(frames) if value.name.startswith("mask") else frames
    write = to_litert if target.suffix == ".tflite" else to_executorch
    sound = np.asarray(write(path, target, inputs)()).reshape(-1)
    wanted = session.run(None, inputs)[0].reshape(-1)
    error = np.square(sound - wanted, dtype=np.float64).mean()
    return float(10 * np.log10(np.square(wanted, dtype=np.float64).mean() / max(error, 1e-30)))


if __name__ == "__main__":
    print(f"{distance_db(Path(sys.argv[1]), Path(sys.argv[2])):.0f} dB from onnxruntime")
