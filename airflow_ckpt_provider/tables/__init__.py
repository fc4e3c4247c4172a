"""Where rows land: the ports of a table, and what the formats behind them have in common.

``table``, ``state``, ``mode``, ``storage`` and ``writer`` are what every format has, and ``format`` finds one by its name.
``iceberg``, ``lance`` and ``staged`` do it, each with writers that stage files on executors and one commit that refers to them.
None imports another. ``keys`` compares the keys of upserts for those that have them.
"""
