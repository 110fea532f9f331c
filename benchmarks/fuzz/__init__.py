"""Mutated files and texts by the thousand: none may end in a traceback, a hang or a full memory."""
