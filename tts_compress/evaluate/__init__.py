"""Comparison of a candidate with its reference."""
