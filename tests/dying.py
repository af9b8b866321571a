"""The death of a process, as a test plays it inside one: nothing records it, and nothing makes a failure of it."""

from agentstate.durable.interruptions import Interruption


class Died(Interruption):
    """Raised at the moment at which the process is to die."""
