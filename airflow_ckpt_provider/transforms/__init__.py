"""What stands between a source and a table: so far, the fingerprint of a user's function."""
