"""Iceberg tables as input: at a pinned snapshot, or only what was appended since the last commit."""
