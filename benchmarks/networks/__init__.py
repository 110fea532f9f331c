"""`make bench-torch`: whole networks at their real sizes, with random weights, run by torch.

Run as ``python -m benchmarks.networks`` from the repository's root, in an environment that has the
network's own package; ``--help`` lists the options.
"""

from benchmarks.networks import architectures, clones, pocket

__all__ = ["architectures", "clones", "pocket"]
