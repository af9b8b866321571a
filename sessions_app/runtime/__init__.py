"""What workers do: claim sessions, drive their agents, and write their journals."""
