"""Code that the SQL stores (SQLite, PostgreSQL, MySQL, Oracle) share: heads as columns, paged reads of logs, and the
sharing of connections."""
