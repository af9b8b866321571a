"""An agent whose async tool kills its worker, for one test of a worker process."""

from agentstate import ToolPolicy, agent
from tests.test_async_desk import deadly

agent("deadly", policies={"wait": ToolPolicy(idempotent=True)})(deadly)
