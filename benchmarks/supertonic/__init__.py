"""Supertonic's four graphs with random weights, and how fast they speak."""
