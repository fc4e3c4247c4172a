"""Rejected rows: the files that hold them in the store, and the source that reads them for another write."""
