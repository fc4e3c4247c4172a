"""Rows as Parquet in a folder of object storage: a table format without a catalog, for rows that pass from one task to the next.

A folder of rows has three kinds of objects, and nothing in it is ever changed:

    table.json            its identity and its columns; put if absent by whoever makes it
    data/<name>.parquet   rows, under names that say whose they are (I4)
    commits/<group>.json  the files that one commit has added; put if absent, so that a commit lands once whoever tries

Its rows are those of the files that its commits list. Commits add rows and take none away, so that none is in the way of another,
and the name of a commit's object is all that a search has to look for.
"""
