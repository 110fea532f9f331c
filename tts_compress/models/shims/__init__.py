"""Stand-ins for packages that a system's code imports, where the real ones cannot be installed.

Each module offers one function, which does nothing where the real package is installed. The module
documents what is replaced and what is left out.
"""
