"""A worker process that drives the sessions it is told to: an id per line on stdin, what became of it on stdout.

python -m tests.worker_main NAME
"""

import os
import sys
from uuid import UUID

import django

django.setup()

from django.conf import settings  # noqa: E402

from agentstate.durable.registry import registry  # noqa: E402
from sessions_app.runtime import leases  # noqa: E402
from sessions_app.runtime.agents import publish_agents  # noqa: E402
from sessions_app.runtime.leases import Heartbeat  # noqa: E402
from sessions_app.runtime.worker import drive  # noqa: E402


def main(name: str) -> None:
    # How long a test has it wait for the database to be written to.
    leases.CLAIM_WAIT_SECONDS = float(os.environ.get("AGENTSTATE_TEST_CLAIM_WAIT", leases.CLAIM_WAIT_SECONDS))
    registry.load(settings.AGENTSTATE_AGENTS)
    publish_agents()
    with Heartbeat(name) as heartbeat:
        sys.stdout.write("ready\n")
        for line in sys.stdin:
            outcome = drive(UUID(line.strip()), worker=name, heartbeat=heartbeat)
            sys.stdout.write(f"{outcome}\n")


if __name__ == "__main__":
    main(sys.argv[1])
