"""Supertonic's four graphs with random weights."""
