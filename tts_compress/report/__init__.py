"""What an evaluation found, for machines and for people."""
