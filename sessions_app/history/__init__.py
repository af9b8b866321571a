"""Reading the stored history of one session back: as a run needs it, and as plain JSON."""
