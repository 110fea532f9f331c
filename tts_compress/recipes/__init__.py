"""Schemes and recipes: the data of `calib/`, read and validated."""
