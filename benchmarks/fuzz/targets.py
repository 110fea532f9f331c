"""The kinds of input: what writes a mutated case of each, and what reads it as a command does."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz import documents, graphs, modules, operators, records, shell, tensors, voices


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of input."""

    share: float
    """Cases of it, in proportion to those of other kinds."""

    write: Callable[[Path, random.Random], None]
    """Writes a mutated case into a folder."""

    read: Callable[[Path, random.Random], object]
    """Reads it; an error of ours is a good end."""


KINDS: Mapping[str, Kind] = {
    "onnx": Kind(22, graphs.write_onnx, graphs.compress_graph),
    "opset": Kind(10, operators.write_chain, operators.run_chain),
    "layer": Kind(10, modules.write_layer, modules.call_layer),
    "contract": Kind(8, voices.write_contract, voices.speak_contract),
    "suite": Kind(3, records.write_suite, records.judge_suite),
    "unit": Kind(4, records.write_results, records.merge_results),
    "storage": Kind(3, records.write_study, records.explore_study),
    "locale": Kind(0.5, shell.write_command, shell.run_in_locale),
    "stream": Kind(0.5, shell.write_command, shell.run_with_streams),
    "json": Kind(14, documents.write_voice, documents.read_voice),
    "toml": Kind(14, documents.write_toml, documents.read_toml),
    "manifest": Kind(12, documents.write_manifest, documents.read_manifest),
    "report": Kind(10, documents.write_report, documents.read_report),
    "npz": Kind(10, graphs.write_npz, graphs.read_calls),
    "safetensors": Kind(8, tensors.write_safetensors, tensors.read_safetensors),
    "text": Kind(5, documents.write_text, documents.read_text),
    "checkpoint": Kind(3, tensors.write_checkpoint, tensors.read_checkpoint),
    "recording": Kind(2, tensors.write_recording, tensors.read_recording),
}
"""Every kind of input, by name."""
