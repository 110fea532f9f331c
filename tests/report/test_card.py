"""The card of an artifact, with and without figures."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.report.stand_in_hub import Hub, serve
from tts_compress.artifact import MANIFEST_NAME, Manifest, read_manifest, sha256_of, with_files
from tts_compress.cli import main
from tts_compress.errors import EvaluationError
from tts_compress.evaluation import read_report
from tts_compress.report.card import CardFacts, render_card

_SHIPPED = Path(__file__).parents[2] / "eval" / "reports" / "demo-int8.json"


def _header(card: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return found


@pytest.fixture
def report(artifact: Path, tmp_path: Path) -> Path:
    """Return the shipped report, as if it were of this artifact."""
    document = json.loads(_SHIPPED.read_text(encoding="utf-8"))
    document["candidate"]["sha256"] = sha256_of(artifact / "voice.onnx")
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_card_with_figures(
    artifact: Path, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The header is what the hub's own client reads, and the text has the report's numbers."""
    given = ["--report", str(report), "--license", "mit", "--base-model", "anna/voice"]
    assert main(["card", str(artifact), *given]) == 0
    path = artifact / "README.md"
    assert capsys.readouterr().out == f"card: {path}\n"
    card = path.read_text(encoding="utf-8")
    header = _header(card)
    assert header["license"] == "mit"
    assert header["language"] == "en"
    assert header["base_model"] == "anna/voice"
    assert header["base_model_relation"] == "quantized"
    assert header["pipeline_tag"] == "text-to-speech"
    hub = pytest.importorskip("huggingface_hub")
    (result,) = hub.ModelCard(card).data.eval_results
    shipped = read_report(_SHIPPED)
    wer, ratio = shipped.wer, shipped.size.ratio
    assert (result.metric_type, result.metric_value) == ("wer", round(100 * wer.candidate, 2))
    assert (result.dataset_name, result.metric_name) == (
        "en-full",
        "Word error rate by pocketsphinx",
    )
    for words in (
        f"{ratio:.1f}× smaller and",
        "python -m piper --model voice.onnx",
        f"| Word error rate | {100 * wer.reference:.1f} % | {100 * wer.candidate:.1f} % |",
        "Suite `en-full` (200 texts, 1 seed); recognizer: PocketSphinx",
        "64 texts of 'en', percentile",
        "tts-compress 0.1.0, onnxruntime 1.31.1",
        "## Licence\n\n`mit`.",
    ):
        assert words in card, words


def test_a_card_says_what_is_not_known(artifact: Path, report: Path) -> None:
    """No figures, no licence, no base model; and no folder of the machine that made it."""
    document = json.loads(report.read_text(encoding="utf-8"))
    document["suite"]["recognizer_name"] = "none"
    report.write_text(json.dumps(document), encoding="utf-8")
    unheard = CardFacts(report=read_report(report))
    assert "model-index" not in _header(render_card(read_manifest(artifact), unheard))
    card = render_card(read_manifest(artifact), CardFacts())
    unknown = {"license", "language", "base_model", "base_model_relation", "model-index"}
    assert not unknown & _header(card).keys()
    assert "/home/anna" not in card
    assert "1.0 kB, 4.0× smaller" in card
    assert "Not evaluated; `tts-compress evaluate" in card
    assert "the original's licence applies" in card


@pytest.mark.parametrize(
    ("spec", "base"),
    [
        ("parler-tts:parler-tts/parler-tts-mini-v1", "parler-tts/parler-tts-mini-v1"),
        ("parler-tts:/data/mini", None),
        ("voices/voice.onnx", None),
        ("demo", None),
    ],
)
def test_the_base_model_is_a_spec_that_names_one(
    artifact: Path, spec: str, base: str | None
) -> None:
    path = artifact / MANIFEST_NAME
    text = path.read_text(encoding="utf-8").replace("/home/anna/voices/voice.onnx", spec)
    manifest = Manifest.from_json(text)
    assert _header(render_card(manifest, CardFacts())).get("base_model") == base
    told = render_card(manifest, CardFacts(base_model="anna/voice"))
    assert _header(told)["base_model"] == "anna/voice"


def test_values_cannot_leave_the_header(artifact: Path) -> None:
    """A licence with a line end would begin another key, or end the header."""
    facts = CardFacts(licence="mit\n---\nevil: true", base_model='a"b: c', language="xx: y")
    header = _header(render_card(read_manifest(artifact), facts))
    assert header["license"] == "mit\n---\nevil: true"
    assert header["base_model"] == 'a"b: c'
    assert header["language"] == "xx: y"
    assert "evil" not in header


_HOSTILE = "x`<b>\n\n# Forged\n\x1b[2J\x9b31m\ufffe"


def test_names_of_others_stay_names(artifact: Path, report: Path) -> None:
    """A report and a manifest of somebody else could write headings, tags and broken YAML."""
    document = json.loads(report.read_text(encoding="utf-8"))
    document["suite"] |= {"name": _HOSTILE, "recognizer": _HOSTILE, "recognizer_name": _HOSTILE}
    document["environment"]["processor"]["model"] = _HOSTILE
    manifest = replace(read_manifest(artifact), scheme=_HOSTILE, family=_HOSTILE)
    document["candidate"]["scheme"] = _HOSTILE
    report.write_text(json.dumps(document), encoding="utf-8")
    card = render_card(manifest, CardFacts(report=read_report(report), licence=_HOSTILE))
    header = _header(card)
    assert "\ufffe" not in card
    assert "\x9b" not in card
    assert header["license"].startswith("x`<b>\n")
    body = card.split("---\n", 2)[2]
    assert "\n# Forged" not in body
    assert "# voice.onnx, x\\`\\<b\\> # Forged \\[2J31m" in body
    assert "Suite `x<b> # Forged [2J31m` (200 texts" in body
    assert "recognizer: x\\`\\<b\\> # Forged" in body
    assert "\n\n`x<b> # Forged [2J31m`." in body, "the licence"


def test_a_files_name_is_no_command(artifact: Path) -> None:
    """`python -m piper --model x;touch PWN;.onnx` was offered for copying."""
    name = "x;touch PWN;`.onnx"
    (artifact / "voice.onnx").rename(artifact / name)
    read = Manifest.from_json((artifact / MANIFEST_NAME).read_text("utf-8"))
    manifest = with_files(read, artifact, name)
    assert f"--model '{name}' --output-file" in render_card(manifest, CardFacts())
    bare = render_card(replace(manifest, family="onnx"), CardFacts())
    assert "The graph `x;touch PWN;.onnx` has" in bare


def test_a_card_does_not_write_through_a_link(
    artifact: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """In an artifact from an archive it may lead to any file of the user's."""
    target = tmp_path / "profile"
    (artifact / "README.md").symlink_to(target)
    assert "README.md' is a link; remove it" in refused("card", artifact, "--force")
    assert not target.exists()


def test_the_report_of_another_model_is_refused(
    artifact: Path, refused: Callable[..., str]
) -> None:
    """Its figures would be published as this one's."""
    assert "the report is of 'out/demo-int8' (int8), whose weights are not" in refused(
        "card", artifact, "--report", _SHIPPED
    )
    assert not (artifact / "README.md").exists()
    one, shipped = read_manifest(artifact), read_report(_SHIPPED)
    several = replace(one, files=dict(one.files) | {"decoder.onnx": "00" * 32})
    with pytest.raises(EvaluationError, match="weights are not this artifact's"):
        render_card(several, CardFacts(report=shipped))
    same = replace(several, source=replace(one.source, sha256=shipped.reference.sha256))
    assert "## Figures" in render_card(same, CardFacts(report=shipped))


def test_a_card_is_replaced_only_when_asked(
    artifact: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    """Somebody may have written into it."""
    (artifact / "README.md").write_text("mine", encoding="utf-8")
    assert "use --force" in refused("card", artifact)
    assert main(["card", str(artifact), "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"card": str(artifact / "README.md")}
    assert main(["card", str(artifact.parent)]) == 2


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


@pytest.mark.slow
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


@pytest.mark.parametrize("is_there", [True, False])
def test_a_hub_that_refuses_or_is_not_there_is_one_line(
    artifact: Path, use: Callable[..., None], refused: Callable[..., str], is_there: bool
) -> None:
    """No request writes; the client's error of the network was an internal error."""
    (artifact / "README.md").write_text("# Voice\n", encoding="utf-8")
    with serve() as hub:
        if not is_there:
            hub.url = "http://127.0.0.1:1"
        use(hub, known=False)
        printed = refused("push", artifact, "me/voice")
        assert printed.startswith("tts-compress: cannot publish 'me/voice': ")
        assert "and the network" in printed
        assert hub.requests == ["POST /api/repos/create"] * is_there


@pytest.mark.parametrize("name", ["README.md", "manifest.json", "voice.onnx.json"])
def test_a_link_is_not_followed(
    artifact: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
    name: str,
) -> None:
    """An artifact from an archive can hold `README.md -> ~/.aws/credentials`, which was sent."""
    (artifact / "README.md").write_text("# Voice\n", encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"
    (artifact / name).rename(elsewhere)
    (artifact / name).symlink_to(elsewhere)
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub, "HfApi", lambda **_: pytest.fail("the hub was asked"))
    assert f"'{artifact / name}' is a link; only files are published" in refused(
        "push", artifact, "me/voice"
    )


def test_what_is_incomplete_or_altered_is_not_sent(
    artifact: Path, refused: Callable[..., str]
) -> None:
    """Without a card nobody knows what it is; a hash that is wrong would be published as right."""
    pytest.importorskip("huggingface_hub")
    assert "write one first: tts-compress card" in refused("push", artifact, "me/voice")
    (artifact / "README.md").write_text("# Voice\n", encoding="utf-8")
    (artifact / "voice.onnx.json").write_text("{}", encoding="utf-8")
    assert "was altered" in refused("push", artifact, "me/voice")
