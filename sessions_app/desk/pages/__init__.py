"""Every read that a page needs: one module per part of a page, pure reads that return small dataclasses.

Nothing here writes or knows of requests. The number of queries never depends on how long a history is.
"""
