"""Observation of real activations: streaming, in constant memory."""
