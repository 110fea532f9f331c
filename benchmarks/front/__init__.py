"""Every way to INT8 on trained voices: how fast it is, and what it costs in sound."""
