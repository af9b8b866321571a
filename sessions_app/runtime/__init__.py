"""What workers do: claim a session, drive its agent, and write the journal under the lease."""
