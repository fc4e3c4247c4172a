"""Looking at the rows that a commit is about to add, before it adds them: write, audit, publish."""
