"""The live mirror: each session as the structures of `agentstate.journals.layout` on a Valkey or Redis server.

It is written after each commit, for programs that want to look at sessions without this database, and it is never
read as truth: what it lacks is written again from the database, by the next commit of the session, by the sweep or by
`manage.py agent mirror --rebuild`. No commit waits for it. AGENTSTATE_MIRROR=false turns it off.
"""
