"""Durable runs of Haystack agents. `run` and what it needs import Haystack; policies and the registry do not."""
