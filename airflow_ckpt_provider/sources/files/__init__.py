"""Files in a folder or in object storage: Parquet, ORC, CSV and JSON lines."""
