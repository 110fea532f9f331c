"""`make bench-gpu`: whole networks at their real sizes, with random weights, on an NVIDIA GPU.

Run as ``python -m benchmarks.gpu`` from the repository's root, in an environment that has the
network's own package and torchao; ``--help`` lists the options.
"""
