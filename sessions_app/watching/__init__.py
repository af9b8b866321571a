"""What only people who have a session open see. None of it is recorded; it is kept for three minutes at most."""
