"""Voices in other runtimes: what they make of FP32 and INT8, and how fast."""
