"""Torch modules whose weights take fewer bits, and the file that holds them.

`base.py` says what such a layer is; `integer.py`, `weight_only.py` and `half.py` hold one kind of
arithmetic each; `attention.py` opens what hides its weights; `checkpoint.py` saves and restores.
"""
