"""The script by which `agentstate.journals.valkey` writes a record: all of it, or nothing."""

# Keys: state, messages, log. Arguments: the writer's epoch, the number of records before this one, the name of this
# write, the record and its operation, the milliseconds after which the session expires (0 for never), "1" to write the
# messages anew, the numbers of messages and of fields to remove, these, and the fields of the state with their values.
WRITE = """
local now = redis.call('HMGET', KEYS[1], 'epoch', 'records', 'last_write')
if now[3] and now[3] == ARGV[3] then return 1 end
local counted = tonumber(now[2] or 0)
if redis.call('XLEN', KEYS[3]) ~= counted or (not now[1] and tonumber(ARGV[2]) > 0) then return -1 end
if tonumber(now[1] or 0) ~= tonumber(ARGV[1]) or counted ~= tonumber(ARGV[2]) then return 0 end
redis.call('XADD', KEYS[3], '*', 'op', ARGV[5], 'record', ARGV[4])
if ARGV[7] == '1' then redis.call('DEL', KEYS[2]) end
local removed = 10 + tonumber(ARGV[8])
local fields = removed + tonumber(ARGV[9])
for i = 10, removed - 1 do redis.call('RPUSH', KEYS[2], ARGV[i]) end
for i = removed, fields - 1 do redis.call('HDEL', KEYS[1], ARGV[i]) end
for i = fields, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'records', tonumber(ARGV[2]) + 1, 'last_write', ARGV[3])
for _, key in ipairs(KEYS) do
  if tonumber(ARGV[6]) > 0 then redis.call('PEXPIRE', key, ARGV[6]) else redis.call('PERSIST', key) end
end
return 1
"""
# What it returns: nothing was written, since the server has lost a part of the session; this was written. Anything else
# means that the session has another writer.
INCOMPLETE, WRITTEN = -1, 1
