"""The forms of the desk. Each reads what a person typed and calls one function of `sessions_app.actions`."""
