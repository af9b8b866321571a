"""The Django app: the truth in the ORM, and the desk on which staff work."""
