"""Exact rewrites of FP32 graphs, one file each."""
