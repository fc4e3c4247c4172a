"""Upserts into a dataset without copying what stays: old rows are marked as deleted, and whole new fragments are added.

The source is staged as fragments first. Then every fragment of the dataset is matched with its keys; what is found there is
written as a deletion file. The commit is a ``Merge`` of all that, which conflicts with whatever changes rows meanwhile, appends
included: a row with one of the keys that somebody else has added is seen, and the fragment it came in is matched as well.
"""
