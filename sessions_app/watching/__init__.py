"""What only people who have a session open see. None of it is the truth, and none of it is held for a minute."""
