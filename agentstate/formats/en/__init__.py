"""The formats of the only language of the desk."""
