"""The efficiency of a sweep on many workers, with units replaced by sleeps of measured length."""
