"""Where rows land: the port of a table, and what the formats behind it have in common.

``protocol`` says what a table can do for a write. ``iceberg`` and ``lance`` do it, each with writers that stage files on executors
and one commit that references them; neither imports the other. ``keys`` compares the keys of upserts for both.
"""
