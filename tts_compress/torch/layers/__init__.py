"""Torch modules whose weights take fewer bits, and the file that holds them.

`base.py` has the registry; a file each holds the layers of one format; `module_surgery.py` prepares
a module for them; `checkpoint.py` saves and restores a tree of modules.
"""
