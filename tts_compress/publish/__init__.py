"""An artifact for others: its card, and its way to a hub."""
