"""The desk's pages. A view reads through `sessions_app.queries`, acts through `sessions_app.forms`, and is thin."""
