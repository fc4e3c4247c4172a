"""Reading tables in bounded memory: the data files of an Iceberg snapshot, the fragments of a Lance version, and sizes of files.

Both sides of a write need it: a source that reads a table, and a table that rewrites its own files. This package knows neither.
Most modules are about one format, and only those that bear Lance's name import it.

Decision, for Iceberg: pyiceberg plans, and Arrow reads, with little of pyiceberg's own reading in between. pyiceberg's reader holds
a whole file in memory, and turns a null list or map of structs into an empty one.
"""
