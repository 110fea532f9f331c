"""Quantization-aware training: a rounded model is trained to match the outputs of its original.

`training` makes a task of a graph, module or system, `trainer` trains its student, whose updates
are in `optimization`; `fake_quantize` is the arithmetic, `prepare` swaps layers and converts them.
"""
