"""The desk's pages. A view reads through `desk.pages`, writes through the forms, and is thin."""
