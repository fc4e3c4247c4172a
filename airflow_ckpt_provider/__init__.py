"""Checkpointed, exactly-once Spark writes into table formats, as an Apache Airflow provider.

Nothing is re-exported here: importing the package costs nothing and imports no Airflow. Users import operators from
``airflow_ckpt_provider.operators``, sensors from ``airflow_ckpt_provider.sensors`` and sources from
``airflow_ckpt_provider.sources``; the protocol itself is described in ``airflow_ckpt_provider.checkpoint``.
"""

__version__ = "0.1.0"
