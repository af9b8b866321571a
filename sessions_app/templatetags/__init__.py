"""Template tags of the desk."""
