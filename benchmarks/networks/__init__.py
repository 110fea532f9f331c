"""`make bench-torch`: whole networks at their real sizes, with random weights, run by torch."""

from benchmarks.networks import architectures, clones, pocket

__all__ = ["architectures", "clones", "pocket"]
