"""Damage to the demo voice that is smaller than words show, and the measures that find it."""
