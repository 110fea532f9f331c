"""Programs from the archive of Debian or Ubuntu, unpacked into a folder and never installed.

`apt-get` gets a configuration of its own in that folder, so it needs no rights, and neither the
machine's packages nor the architectures it knows change.
"""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_KEYRINGS = Path("/usr/share/keyrings")
_HOST = {"x86_64": "amd64", "aarch64": "arm64"}


class NotAvailableError(Exception):
    """Something cannot be had on this machine; the message names it and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Archive:
    """The addresses of a distribution's packages."""

    url: str
    ports: str
    """The same for architectures other than amd64."""

    areas: str
    keyring: str


_ARCHIVES = {
    "debian": _Archive(
        url="http://deb.debian.org/debian",
        ports="http://deb.debian.org/debian",
        areas="main",
        keyring="debian-archive-keyring.gpg",
    ),
    "ubuntu": _Archive(
        url="http://archive.ubuntu.com/ubuntu",
        ports="http://ports.ubuntu.com/ubuntu-ports",
        areas="main universe",
        keyring="ubuntu-archive-keyring.gpg",
    ),
}


def unpack(names: Sequence[str], folder: Path, architecture: str | None = None) -> None:
    """Unpack packages and all that they depend on.

    Args:
        names: Packages of the distribution that this machine runs.
        folder: Destination of their files, as if it were the root of a machine.
        architecture: As Debian calls it; None for this machine's.

    Raises:
        NotAvailableError: This is neither Debian nor Ubuntu, or the archive cannot be reached.
    """
    wanted = architecture or _HOST.get(platform.machine(), platform.machine())
    apt = folder / "apt"
    for part in ("state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()  # of a machine without any package, so that nothing is left out
    (apt / "sources.list").write_text(_source(wanted) + "\n", encoding="utf-8")
    command = ["apt-get", "--quiet", "--quiet", *_options(apt, wanted)]
    run_tool([*command, "update"])
    install = ["install", "--yes", "--download-only", "--no-install-recommends"]
    run_tool([*command, *install, *names])
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        run_tool(["dpkg-deb", "--extract", str(package), str(folder)])
    shutil.rmtree(apt)
    _link_libraries(folder)


def run_tool(command: Sequence[str]) -> str:
    """Return what a program prints.

    Raises:
        NotAvailableError: There is no such program, or it failed; with its first error.
    """
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NotAvailableError(f"this machine has no {command[0]}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        errors = [line for line in lines if line.startswith(("E:", "ERROR:"))]
        raise NotAvailableError(f"{Path(command[0]).name} failed: {(errors or lines)[0]}")
    return done.stdout


def _link_libraries(folder: Path) -> None:
    """Let `lib` have what packages put into `usr/lib`; on a whole machine the two are one."""
    (folder / "lib").mkdir(exist_ok=True)
    for entry in (folder / "usr" / "lib").glob("*"):  # qemu has none
        if not (folder / "lib" / entry.name).exists():
            (folder / "lib" / entry.name).symlink_to(Path("..", "usr", "lib", entry.name))


def _source(architecture: str) -> str:
    """Return the line that names the archive of the distribution that this machine runs."""
    try:
        system = platform.freedesktop_os_release()
    except OSError as error:
        raise NotAvailableError("this is neither Debian nor Ubuntu") from error
    archive = _ARCHIVES.get(system["ID"])
    if archive is None:
        raise NotAvailableError(f"this is {system['ID']}, neither debian nor ubuntu")
    keyring = _KEYRINGS / archive.keyring
    if not keyring.is_file():
        raise NotAvailableError(f"the archive's keys are missing ({keyring})")
    url = archive.url if architecture == "amd64" else archive.ports
    return f"deb [signed-by={keyring}] {url} {system['VERSION_CODENAME']} {archive.areas}"


def _options(apt: Path, architecture: str) -> list[str]:
    """Return the options that make apt-get work in a folder, for one architecture."""
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",  # who may not be able to enter the folder
        "APT::Update::Error-Mode": "any",
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
    }
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
