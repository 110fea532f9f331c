"""Memory of a process."""

from __future__ import annotations

from pathlib import Path


def peak_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    return _status("VmHWM")


def resident_bytes() -> int:
    """Return the resident memory of this process now."""
    return _status("VmRSS")


def _status(field: str) -> int:
    """Return a field of Linux's own account; `getrusage` would count the parent's memory, too."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
