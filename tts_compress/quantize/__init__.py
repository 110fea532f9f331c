"""Conversion: one file per technique."""
