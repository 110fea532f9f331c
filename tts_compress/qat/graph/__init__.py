"""Training of ONNX graphs: the graph itself is trained, in torch."""
