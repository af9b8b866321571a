"""The database engine of the settings for SQLite: Django's, which converts the text of each statement once."""
