"""`tts-compress push` with the real client, against a stand-in for the hub."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.report.stand_in_hub import Hub, serve
from tts_compress.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT = Path(__file__).parents[2]


def _push(hub: Hub, *arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("huggingface_hub")
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": hub.accepted,
        "HF_HUB_DISABLE_XET": "1",  # the stand-in stores large files by LFS
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": str(_ROOT),
        "no_proxy": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, "-m", "tts_compress.cli", "push", *arguments],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that has the client of this process ask a hub, with or without a key."""
    client = pytest.importorskip("huggingface_hub")
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    client_of = client.HfApi

    def ask(hub: Hub, *, known: bool = True) -> None:
        token = hub.accepted if known else "hf_other"
        monkeypatch.setattr(client, "HfApi", partial(client_of, endpoint=hub.url, token=token))

    return ask


def test_an_artifact_and_its_card_are_one_commit(artifact: Path, use: Callable[..., None]) -> None:
    """Every file of the artifact, byte by byte, and nothing else of the folder."""
    (artifact / "README.md").write_text("---\nlicense: mit\n---\n# Voice\n", encoding="utf-8")
    with serve() as hub:
        done = _push(hub, str(artifact), "me/voice", "--private", "--message", "First")
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"published: {hub.url}/me/voice/commit/abc\n"
        assert hub.created == {"me/voice": True}
        (commit,) = hub.commits
        assert commit["message"] == "First"
        sent = {"README.md", "manifest.json", "voice.onnx", "voice.onnx.json"}
        assert commit["files"] == {name: (artifact / name).read_bytes() for name in sent}
        use(hub)
        assert main(["push", str(artifact), "me/voice"]) == 0, "the repository is there already"
        assert len(hub.commits) == 2


def test_a_hub_that_refuses_is_one_line(
    artifact: Path, use: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of the client's traceback, and no request that writes."""
    (artifact / "README.md").write_text("# Voice\n", encoding="utf-8")
    with serve() as hub:
        use(hub, known=False)
        assert main(["push", str(artifact), "me/voice"]) == 2
        printed = capsys.readouterr().err
        assert printed.startswith("tts-compress: cannot publish 'me/voice': ")
        assert len(printed.splitlines()) == 1
        assert hub.requests == ["POST /api/repos/create"]


def test_a_hub_that_is_not_there_is_one_line(
    artifact: Path, use: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The client's error of the network is no `OSError`: it was an internal error."""
    (artifact / "README.md").write_text("# Voice\n", encoding="utf-8")
    nowhere = Hub()
    nowhere.url = "http://127.0.0.1:1"
    use(nowhere)
    assert main(["push", str(artifact), "me/voice"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("tts-compress: cannot publish 'me/voice': ")
    assert "and the network" in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("name", ["README.md", "manifest.json", "voice.onnx.json"])
def test_a_link_is_not_followed(
    artifact: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    """An artifact from an archive can hold `README.md -> ~/.aws/credentials`, which was sent."""
    (artifact / "README.md").write_text("# Voice\n", encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"
    (artifact / name).rename(elsewhere)
    (artifact / name).symlink_to(elsewhere)
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub, "HfApi", lambda **_: pytest.fail("the hub was asked"))
    assert main(["push", str(artifact), "me/voice"]) == 2
    assert f"'{artifact / name}' is a link; only files are published" in capsys.readouterr().err


def test_what_is_incomplete_or_altered_is_not_sent(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a card nobody knows what it is; a hash that is wrong would be published as right."""
    pytest.importorskip("huggingface_hub")
    assert main(["push", str(artifact), "me/voice"]) == 2
    assert "write one first: tts-compress card" in capsys.readouterr().err
    (artifact / "README.md").write_text("# Voice\n", encoding="utf-8")
    (artifact / "voice.onnx.json").write_text("{}", encoding="utf-8")
    assert main(["push", str(artifact), "me/voice"]) == 2
    assert "was altered" in capsys.readouterr().err
