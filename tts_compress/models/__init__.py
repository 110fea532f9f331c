"""Systems we can load: `base.py` is the protocol, one file per family."""
