"""Read models: one module per page or part of a page, with functions that read rows and return small dataclasses.

Nothing here writes, and nothing knows of HTTP requests. Rows are masked before they are returned. Every function that
reads says how many queries it makes; their number never depends on how long a history is.
"""
