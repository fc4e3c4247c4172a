"""The commands ``airflow checkpoints …``."""
