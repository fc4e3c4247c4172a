"""Reading Iceberg tables: which files a snapshot has for a filter, and the rows of one of them in bounded memory.

Both sides of a write need it: a source that reads a table, and a table that rewrites its own files. It knows neither.

Decision: pyiceberg plans, and Arrow reads, with little of pyiceberg's own reading in between. That one holds a whole file in
memory, and turns a null list or map of structs into an empty one.
"""
