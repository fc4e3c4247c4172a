"""Upsert, computed as splits: rows that match are updated by rewriting the files that hold them, the others are inserted.

Each phase is a list of splits that are checkpointed like those of an append, and each needs only what the phases before it
recorded:

- *source*: the rows of one split of the source, in the table's schema, as one staged source file that no snapshot refers to;
- *match*: a live data file of the table, or several small ones, each rewritten if a source row changes one of its rows, and a
  sidecar with the addresses of all source rows that they hold already; and, beside it, *unique*: no key occurs twice in the source;
- *insert*: one staged source file's rows less those that any sidecar names.

These rows are grouped by a hash of their key into buckets, so that any question about keys can be answered bucket by
bucket in bounded memory (I11). Hashes only ever narrow a search; whether keys are equal is decided by the keys.
"""
