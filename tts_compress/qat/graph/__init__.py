"""What only an ONNX graph is known of: the graph itself learns, in torch."""
