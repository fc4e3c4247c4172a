"""What is in a checkpoint store, for people: the command line and the page in Airflow show the same facts, taken from here.

Reading changes nothing. Facts are told from the store alone, whose documents may have been altered (I15): they are shown, and
nothing is decided by them. What is to be changed asks the table first, in ``actions``.
"""
