"""Finding sessions: queues, filters, saved views, stuck sessions and the search."""
