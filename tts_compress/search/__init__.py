"""Search: how much each layer suffers in each format, and the formats that suit a voice best."""
