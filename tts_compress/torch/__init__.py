"""Compression of torch modules: `decisions.py` decides about layers, `convert.py` replaces them."""
