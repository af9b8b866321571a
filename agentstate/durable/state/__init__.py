"""The state of a run: the conversation, the state keys, and how values are encoded."""
