"""How fast, how lean and how cheap to retry: ``python -m benchmarks`` measures it beside what one would use instead.

No test and no part of the package: wall times belong to one machine. Ratios are taken within one run, from measurements
that alternate, so that a busy machine slows down both sides.
"""
