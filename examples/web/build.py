"""Build the folder of the browser's demo: both voices, sentences as phoneme ids, and the runtime.

python examples/web/build.py out/web            # then serve it: python -m http.server -d out/web
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from tts_compress import compress, load
from tts_compress.artifact import atomic_directory
from tts_compress.errors import ArtifactError, ModelError, TTSCompressError
from tts_compress.export.stream import export_stream
from tts_compress.models.onnx_voice import OnnxVoice

HERE = Path(__file__).parent
MODULES = HERE / "node_modules"
RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
SENTENCES = (
    "Hello there, and thank you for listening to this.",
    "The quick brown fox jumps over the lazy dog.",
    "Would you like to hear it once more?",
    "When the sun sets behind the hills, the old men sit in front of their houses and talk about "
    "the years when the river was still clean, the fields were wide, and every child of the "
    "village knew the name of each horse, each dog and each tree between the church and the lake.",
    "A thick fog covered the valley, so the driver moved very slowly through the village.",
)


def build(spec: str, scheme: str, folder: Path, *, typed: bool) -> None:
    """Write all files of the page into a folder."""
    original = load(spec)
    if original.family != "piper" or not isinstance(original, OnnxVoice):
        raise ModelError(f"'{spec}' is no Piper voice, and the page speaks only these")
    if original.speakers:
        raise ModelError(
            f"'{spec}' has {len(original.speakers)} speakers, and the page cannot choose one; give "
            "a voice of a single speaker"
        )
    small = compress(original, scheme=scheme)
    assert isinstance(small, OnnxVoice), "what is made of a voice is one"
    shutil.copytree(MODULES / "onnxruntime-web" / "dist", folder / "ort", ignore=_others)
    for path in (HERE / "index.html", *HERE.glob("*.mjs")):
        shutil.copyfile(path, folder / path.name)
    if typed:
        shutil.copyfile(MODULES / "phonemizer" / "dist" / "phonemizer.js", folder / "phonemizer.js")
    voices = []
    original.save(folder / "fp32")
    export_stream(small, folder / "small")
    for label, files in (("FP32", folder / "fp32"), (scheme.upper(), folder / "small")):
        (graph,) = files.glob("*.onnx")
        voices.append({"label": label, "file": str(graph.relative_to(folder))})
    voices.append({"label": f"{scheme.upper()}, streaming", "stages": "small/stream"})
    config = json.loads(graph.with_name(f"{graph.name}.json").read_text(encoding="utf-8"))
    page = _sentences(original) | {
        "sampleRate": original.sample_rate,
        "voices": voices,
        "typed": typed,
        "language": config["espeak"]["voice"],
        "symbols": config["phoneme_id_map"],
    }
    (folder / "page.json").write_text(json.dumps(page), encoding="utf-8")


def _sentences(voice: OnnxVoice) -> dict[str, object]:
    """Return the sentences with their ids, and the voice's own scales."""
    found = []
    for text in SENTENCES:
        (call,) = voice.calibration_calls([text], seed=0)
        found.append({"text": text, "ids": call["input"].reshape(-1).tolist()})
    return {"sentences": found, "scales": call["scales"].tolist()}


def _others(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name not in RUNTIME]


def main() -> int:
    """Run it; 2 is bad input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--voice", default="demo", help="a Piper voice in FP32 (demo)")
    parser.add_argument("--scheme", default="int8", help="of the compressed one (int8)")
    options = parser.parse_args()
    typed = (MODULES / "phonemizer").is_dir()
    try:
        if not (MODULES / "onnxruntime-web").is_dir():
            raise ArtifactError(
                "onnxruntime-web is not installed; run: npm ci --prefix examples/web"
            )
        with atomic_directory(options.output, marker="page.json", force=True) as folder:
            build(options.voice, options.scheme, folder, typed=typed)
    except TTSCompressError as error:
        print(f"web: {error}", file=sys.stderr)
        return 2
    size = sum(path.stat().st_size for path in options.output.rglob("*") if path.is_file())
    print(f"built: {options.output} ({size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
