"""Airflow connections, turned into what the layers below take."""
