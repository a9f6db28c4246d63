"""What SQLite, PostgreSQL, MySQL and Oracle share: heads as columns, and reading a log in stretches."""
