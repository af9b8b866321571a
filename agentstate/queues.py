"""The broker's queues, and which of them hold what must not wait.

A free worker takes the next message from the first of these queues that has one: the sweep itself, which is short; a
new session, or what a person has asked for; what the sweep has found due, longest first; sessions that have given way,
and those at rest that are to be compared with others. The sweep finds those that have given way, too: behind their own
messages, a session that has lost its worker, or its message, would wait until all others are done.
"""

SWEEP_QUEUE = "agentstate.sweep"
QUEUE = "agentstate"
FOUND_QUEUE = "agentstate.found"
LATER_QUEUE = "agentstate.later"
QUEUES = (SWEEP_QUEUE, QUEUE, FOUND_QUEUE, LATER_QUEUE)
# Reserved threads of a worker take nothing else.
URGENT_QUEUES = frozenset({SWEEP_QUEUE, QUEUE})
