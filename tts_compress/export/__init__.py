"""ONNX graphs of systems that run in torch, and graphs in the place of torch modules."""
