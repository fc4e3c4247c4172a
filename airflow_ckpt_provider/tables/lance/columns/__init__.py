"""New columns, computed range by range: what is staged, how it becomes one file for each fragment, and how those land.

A range that covers a whole fragment is staged as the column file that the fragment gets. Where a fragment was cut into several
ranges, or has deleted rows, which have a place in the file too, a further round joins the ranges into one file.
"""
