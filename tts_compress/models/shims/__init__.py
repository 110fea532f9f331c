"""Stand-ins for packages that a system's code imports, where the real ones cannot be installed.

Each module offers one function; it does nothing where the real package is there. What stands in
for what, and what it leaves out, is said in the module.
"""
