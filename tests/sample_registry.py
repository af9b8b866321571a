"""The sample agents, registered: for tests that go through the desk's own machinery."""

from agentstate import ToolPolicy, agent
from tests import sample_agents

for _name, (_build, _) in sample_agents.KINDS.items():
    agent(f"sample-{_name}", title=_name)(_build)

agent("sample-refunds", policies={"refund": ToolPolicy(approval=True, approval_ttl=3600)})(
    sample_agents.refunds
)
agent("sample-doubtful")(sample_agents.refunds)
agent("sample-confirmed")(sample_agents.confirmed)
for _name, (_build, _) in sample_agents.ASYNC_KINDS.items():
    agent(f"sample-{_name}", title=_name)(_build)
