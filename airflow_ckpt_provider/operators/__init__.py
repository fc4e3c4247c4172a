"""Operators: they read Airflow's context, call the layers below, log what those report, and map errors."""
