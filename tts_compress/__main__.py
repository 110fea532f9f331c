"""`python -m tts_compress`."""

import sys

from tts_compress.cli import main

if __name__ == "__main__":
    sys.exit(main())
