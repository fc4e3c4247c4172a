"""Apache Iceberg, format version 2: executors write data files and manifests, the commit writes one manifest list.

``pyiceberg``'s own append, ``add_files`` and ``Transaction`` are not used: they retry behind our back without a look at the
table's history, which commits twice, and they read every file again. See ``commit`` for what is swapped in, and
``write.commit_loop`` for the loop that replaces theirs.
"""
