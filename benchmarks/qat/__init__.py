"""The gain of training without data, on a real vocoder: `python -m benchmarks.qat`."""
