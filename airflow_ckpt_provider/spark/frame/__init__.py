"""Staging a DataFrame: Spark computes and shuffles its rows, one task writes each bucket of them.

The other engine of a stage has no shuffle and reads its splits in Arrow; this one takes whatever Spark can compute, and pays with
a pass of all rows from the JVM to Python.
"""
