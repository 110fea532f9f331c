"""Conversion of ONNX graphs."""
