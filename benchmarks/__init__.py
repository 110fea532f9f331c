"""`make bench`: FP32, what everybody uses today, and each of our schemes, side by side."""
