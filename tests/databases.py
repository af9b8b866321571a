"""Databases other than that of the test suite."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dj_database_url
from django.db import connections
from django.db.utils import load_backend


@contextmanager
def connected(url: str) -> Iterator[None]:
    """Let this thread work on the database at `url` instead of the test suite's."""
    parsed: dict[str, Any] = {**dj_database_url.parse(url)}
    if url.startswith("sqlite"):
        parsed["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 20}
    config = connections.configure_settings({"default": parsed})["default"]
    usual = connections["default"]
    connections["default"] = load_backend(config["ENGINE"]).DatabaseWrapper(config, "default")
    try:
        yield
    finally:
        connections["default"].close()
        connections["default"] = usual
