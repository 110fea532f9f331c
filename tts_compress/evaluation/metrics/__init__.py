"""The metrics of this package: each module lists its own in `METRICS`, and nothing else does."""
