"""The database engine of the settings for PostgreSQL: Django's, with a pool of connections for each process, and prepared statements."""
