"""Training with rounded weights and activations: a compressed module learns from its original."""
