"""The protocol of a write, between the engine that runs its splits and the ports of sources and tables.

Knows neither Airflow, nor Spark, nor a table format.

The stage side: a ``request`` says what the user wants; ``generations`` finds or opens the generation of its key, which
``headers`` says what to bind to; an ``attempt`` goes on with it; its ``planning`` says which splits are missing, beside those
of earlier attempts that ``recovery`` finds whole; ``rounds`` hands them to an engine, whose tasks do the ``work`` of one split
each; and the write is sealed.

The commit side: ``groups`` lands sealed writes, with those that ``membership`` says belong together; the ``commit_loop`` lands
each group once, on a state of the table that passes the ``conflict_checks`` and whose ``staged_files`` are all there;
``commits`` tells whether a write has landed. ``looks`` asks a table that other writers change meanwhile.

Afterwards: ``cleanup`` removes the orphans of a key, ``freeing`` rows that other tasks have read, and a ``sweep`` both, with
the records of a whole store.
"""
