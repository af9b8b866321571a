"""The database engine for PostgreSQL: Django's, with a pool of connections for a process, and prepared statements."""
