"""ONNX graphs: editing, running, rewriting and quantizing them."""
