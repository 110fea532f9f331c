"""Compressing modules of torch: `decisions.py` chooses for layers, `convert.py` exchanges them."""
