"""What OpenLineage is told of a task: what it has read, what has landed, and what checks have found.

``facts`` gathers that while a task runs, ``facets`` says it in OpenLineage's words once it is asked by the methods in ``told``, and
``names`` has the names of datasets.
"""
