"""A Haystack agent made durable. `run` and what it needs import Haystack; policies and the registry do not."""
