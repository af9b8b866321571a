"""The read models of the pages of one session."""
