"""Lance datasets: fragments written under names of our own, and commits that cannot be rebased over one another.

Lance is imported only where a function needs it: a process that has used it must not be forked any more.
"""
