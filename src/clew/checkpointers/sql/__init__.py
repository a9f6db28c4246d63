"""Code that the SQL stores (SQLite, PostgreSQL, MySQL, Oracle) share: heads as columns, and reading a log in pages."""
