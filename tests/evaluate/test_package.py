"""The package and the verb share a name."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "imports",
    [
        "from tts_compress import evaluate",
        "from tts_compress import check, evaluate",
        "import tts_compress.evaluate; from tts_compress import evaluate",
        "from tts_compress.evaluate import evaluate",
    ],
)
def test_evaluate_can_be_called_however_it_is_imported(imports: str) -> None:
    """Importing a package binds its name in the parent, over the function of that name."""
    code = f"""
{imports}
try:
    evaluate("a.onnx", "b.onnx", suite="no-such-suite")
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "RecipeError"
