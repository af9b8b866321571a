"""The database engine for PostgreSQL: Django's, with a pool of connections for each process, and prepared statements."""
