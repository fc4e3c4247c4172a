"""The page in Airflow's UI: what a checkpoint holds, live, and what may be done to it. Made by the API server."""
