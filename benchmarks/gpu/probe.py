"""Time and memory of a GPU."""

from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.networks.network import Step
from tts_compress.errors import EvaluationError
from tts_compress.torch.devices import start_clock


class CudaProbe:
    """The GPU that torch uses first."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            build = f"torch {torch.__version__}"
            raise EvaluationError(
                f"there is no CUDA device for {build}; run this on a machine with an NVIDIA GPU "
                "and a build of torch for CUDA, or python -m benchmarks.networks for the CPU"
            )
        self.device = torch.device("cuda", torch.cuda.current_device())

    def describe(self) -> dict[str, str]:
        """Return name, compute capability, and CUDA's version."""
        major, minor = torch.cuda.get_device_capability(self.device)
        memory = torch.cuda.get_device_properties(self.device).total_memory
        return {
            "name": torch.cuda.get_device_name(self.device),
            "capability": f"{major}.{minor}",
            "memory": f"{memory / 2**30:.0f} GiB",
            "cuda": str(torch.version.cuda),
        }

    def time_ms(self, step: Step) -> float:
        """Return the duration of one run on the device's own clock, idle gaps included, in ms."""
        seconds = start_clock(self.device)
        step()
        return 1e3 * seconds()

    def capture(self, step: Step) -> Step:
        """Return a function that starts the kernels of a run again, as a CUDA graph.

        Raises:
            RuntimeError: The run waits for the GPU, or copies from the CPU.
        """
        torch.cuda.set_sync_debug_mode("error")  # an error while capturing breaks what follows
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = step()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay

    def working_bytes(self, step: Step) -> int:
        """Return the largest growth of torch's own account of what is allocated, in one run."""
        torch.cuda.synchronize(self.device)
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        step()
        torch.cuda.synchronize(self.device)
        return int(torch.cuda.max_memory_allocated(self.device) - before)


def held_bytes(root: nn.Module) -> int:
    """Return the bytes of a module's parameters and buffers; shared ones count once."""
    parts = (part for tensor in (*root.parameters(), *root.buffers()) for part in _plain(tensor))
    return sum(size for _, size in {(part.data_ptr(), part.nbytes) for part in parts})


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors one consists of: torchao's name the size of what they stand for."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        yield from _plain(getattr(tensor, name))
