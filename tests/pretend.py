"""A GPU that is not there: tensors that claim to lie on `cuda`, with values that the CPU computes.

As torch's `FakeTensorMode` it refuses an operator whose tensors lie on two devices; but its tensors
have values, so that whole systems speak, decide by what they computed, and can be compared.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = torch.device("cuda", 0)
_Tensor: Any = Tensor  # their own annotations leave no way to override their methods
_Mode: Any = TorchDispatchMode
_aten = torch.ops.aten

_INDEXING = {
    *(_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default),
    _aten._index_put_impl_.default,
}
"""Operators whose second argument, indices, may lie on the CPU on any GPU, too."""

_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
"""The array `c10::impl::device_guard_impl_registry`, as the linker names it."""

_MATH = 0
"""Number of attention's backend that consists of other operators."""


class CudaTensor(_Tensor):  # type: ignore[misc]
    """A tensor that claims to lie on the GPU; `held` has its values, on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls: Any, held: Tensor) -> "CudaTensor":
        """Return one of the same shape and strides."""
        made: CudaTensor = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=CUDA,
            requires_grad=held.requires_grad,
        )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:
        """Return the values."""
        return f"CudaTensor({self.held!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy with values of its own."""
        return memo.setdefault(id(self), CudaTensor(self.held.clone()))

    def numpy(self, **_: Any) -> Any:
        """Refuse, as a GPU's tensor does."""
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")

    __array__ = numpy

    def tolist(self) -> Any:
        """Return the values, which a GPU copies for that."""
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the CPU what is asked of the GPU."""
        del types
        return _compute(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


class _Gpu(_Mode):  # type: ignore[misc]
    """Lets the operators that make tensors know the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return _compute(func, args, kwargs or {})


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on the values, after checking that all of its tensors lie on one device."""
    claimed: dict[int, CudaTensor] = {}  # by their values
    strangers: list[Tensor] = []
    values = _values(args, claimed, strangers)
    keywords = _values(kwargs, claimed, strangers)
    if func in _INDEXING and isinstance(args[0], CudaTensor):
        strangers = []
        _values(args[2:], {}, strangers)
    if claimed and strangers and func is not _aten.copy_.default:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"cuda:0 and cpu! ({func})"
        )
    if func is _aten._fused_sdp_choice.default:
        return _MATH
    on_gpu = isinstance(args[0], CudaTensor) if func is _aten.copy_.default else bool(claimed)
    if (device := keywords.get("device")) is not None:
        on_gpu = torch.device(device).type == "cuda"
        keywords["device"] = torch.device("cpu") if on_gpu else device
    missing = func is _aten._thnn_fused_lstm_cell.default  # on CPUs
    returned = (_lstm_cell if missing else func)(*values, **keywords)
    return _claimed(returned, claimed) if on_gpu else returned


def _values(value: Any, claimed: dict[int, CudaTensor], strangers: list[Tensor]) -> Any:
    """Return the values of what may hold tensors, and note those of either device.

    Ones of a single number go anywhere.
    """
    if isinstance(value, CudaTensor):
        claimed[id(value.held)] = value
        return value.held
    if isinstance(value, list | tuple):
        return type(value)(_values(inner, claimed, strangers) for inner in value)
    if isinstance(value, dict):
        return {key: _values(inner, claimed, strangers) for key, inner in value.items()}
    if isinstance(value, Tensor) and value.dim() and not value.is_meta:
        strangers.append(value)
    return value


def _claimed(value: Any, claimed: dict[int, CudaTensor]) -> Any:
    """Return what an operator returned as tensors of the GPU: those it was given, or new ones."""
    if isinstance(value, list | tuple):
        return type(value)(_claimed(inner, claimed) for inner in value)
    if not isinstance(value, Tensor) or isinstance(value, CudaTensor):
        return value
    return claimed[id(value)] if id(value) in claimed else CudaTensor(value)


def _lstm_cell(
    gates: Tensor, hidden: Tensor, cell: Tensor, bias: Any = None, bias_hidden: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden state, cell and gates of an operator that only GPUs have."""
    total = gates + hidden
    for part in (bias, bias_hidden):
        total = total if part is None else total + part
    enter, forget, new, leave = total.chunk(4, 1)
    state = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * state.tanh(), state, total


@contextmanager
def _guard() -> Iterator[None]:
    """Let torch switch to the GPU as it does to `meta`: not at all.

    A build for CPUs has no guard for devices of CUDA, and stops at the first index or convolution,
    under `FakeTensorMode`, too.
    """
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    if not library.is_file():
        pytest.skip("the guards of devices are looked for in libc10.so")
    guards = (ctypes.c_void_p * 15).in_dll(ctypes.CDLL(str(library)), _GUARDS)
    before, guards[1] = guards[1], guards[1] or guards[14]  # by `c10::DeviceType`: CUDA, Meta
    lifting = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(lifting)
        guards[1] = before


@contextmanager
def pretend_gpu(monkeypatch: Any) -> Iterator[None]:
    """Let torch have a GPU in the block, on threads that begin in it, too."""
    run = threading.Thread.run

    def with_gpu(thread: threading.Thread) -> None:
        with _Gpu():
            run(thread)

    properties = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "empty_cache": lambda: None,
        "synchronize": lambda *_: None,
        "get_device_capability": lambda *_: (9, 0),
        "manual_seed_all": lambda _: None,
        "manual_seed": lambda _: None,
    }
    with monkeypatch.context() as patch, _guard(), _Gpu():
        patch.setattr(threading.Thread, "run", with_gpu)
        # Tensors made in inference mode cannot be wrapped.
        patch.setattr(
            torch._C, "_InferenceMode", lambda on: torch.no_grad() if on else nullcontext()
        )
        for name, value in properties.items():
            patch.setattr(torch.cuda, name, value)
        yield


@contextmanager
def called_layers() -> Iterator[list[Any]]:
    """Note the modules with a weight of their own that are called in the block."""
    called: list[Any] = []

    def note(module: nn.Module, _: Any) -> None:
        if "weight" in module._parameters:
            called.append(module)

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield called
    finally:
        handle.remove()
