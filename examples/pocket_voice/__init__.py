"""A small Pocket-TTS voice, trained on the demo voice's speech; see README.md."""
