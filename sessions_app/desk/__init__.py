"""The web desk for staff: addresses, views, forms, and the read model of each page."""
