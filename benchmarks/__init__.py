"""`make bench`: FP32, what everybody uses today, and each of our schemes, side by side.

Run as ``python -m benchmarks`` from the repository's root; ``--help`` lists the options.
"""
