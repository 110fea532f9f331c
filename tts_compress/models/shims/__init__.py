"""Stand-ins for packages that a system's code imports, where the real ones cannot be installed."""
