"""The training loop: it knows a `Task`, its options, and where to keep its checkpoints."""
