"""Keys of rows, whatever the table: values in one form, an index over them, and as many at a time as memory allows."""
