"""Running a stage on Spark: the session, the missing splits as one task each, progress, and stopping.

Spark only schedules. A task reads, transforms and writes its split in Arrow and publishes it to the checkpoint store; rows
never cross the JVM, and the store is the only channel back.
"""
