"""Upserts into a dataset without copying what stays: old rows are marked as deleted, and whole new fragments are added.

The source is staged as fragments first. Then every fragment of the dataset is matched with its keys; what is found there is
written as a deletion file. Where not all rows of the source land (``when_matched="ignore"`` or ``when_not_matched="ignore"``),
which of them were found is written, too, and a third round takes each staged file as it is, without the rows that do not land, or
not at all. The commit is a ``Merge`` of all that, which conflicts with whatever changes rows meanwhile, appends included: a row
with one of the keys that somebody else has added is seen, and the fragment it came in is matched as well.

In a dataset with stable row ids, updated rows keep theirs: matching finds out which, the third round splits staged files into rows
that were found and others, and the commit is an ``Update`` that is as strict; see ``updating``.
"""
