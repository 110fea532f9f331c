"""A real vocoder in FP32, in our INT8 and in stock INT8, judged by sound and by words."""
