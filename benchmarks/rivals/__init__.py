"""The same work done by other durable engines, in an environment of their own (`requirements.txt`)."""
