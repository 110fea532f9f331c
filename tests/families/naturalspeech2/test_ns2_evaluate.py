"""A report of NaturalSpeech2 states how it is run, and what is not as upstream runs it."""

import json
from pathlib import Path

import pytest

from tests.families.conformance import write_suite
from tts_compress.cli import main


@pytest.mark.slow
def test_a_report_states_what_is_not_upstreams(
    tmp_path: Path, tiny_ns2_dir: Path, amphion: Path
) -> None:
    """The model is its own candidate; workers find the clone by the option's setting."""
    pytest.importorskip("pocketsphinx")
    spec, out = f"naturalspeech2:{tiny_ns2_dir}?inference_step=2", tmp_path / "report"
    arguments = [spec, spec, "--suite", str(write_suite(tmp_path, ["Hello there."]))]
    checkout = ["--checkout", str(amphion)]
    assert main(["evaluate", *arguments, "--output", str(out), *checkout]) == 0
    found = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert found["health"]["candidate"] == found["health"]["reference"]
    for side in ("reference", "candidate"):
        settings = found[side]["settings"]
        assert settings["solver"].startswith("2 steps")
        assert len(settings["upstream commit"]) == 40
    # The audio that the script would play differs.
    note = "dropout is off here, where the script leaves it on"
    for name in ("report.md", "report.html"):
        page = (out / name).read_text(encoding="utf-8")
        assert note in page
        assert page.index(note) < page.rindex("Provenance")  # above the details
