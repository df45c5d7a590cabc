"""One function per command: it says what it takes, calls the library and shows the answer.

Nothing that loads torch is imported before a command runs.
"""
