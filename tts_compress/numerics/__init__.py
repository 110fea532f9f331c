"""Numbers as small integers: the arithmetic that ONNX graphs and torch modules share."""
