"""`python -m tts_compress.cli`."""

from __future__ import annotations

import sys

from tts_compress.cli import main

if __name__ == "__main__":
    sys.exit(main())
