"""Programs for those who work on the project; nothing here runs on a desk."""
