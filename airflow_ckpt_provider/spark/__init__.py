"""Running a stage on Spark: the session, the missing splits as one task each, progress, stopping, and checks of staged rows.

``stage`` only schedules: a task reads, transforms and writes its split in Arrow, and no row crosses the JVM. ``frame`` is for the
rows of a DataFrame, which Spark computes and shuffles, so that each of them passes from the JVM to Python once. In both, a task
publishes its split to the checkpoint store, which is the only channel back to the driver.
"""
