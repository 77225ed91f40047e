"""Where a part is in Redis, and the scripts that read and write it. Pure.

{PREFIX:NAME}:keys     a sorted set whose members are the keys, all with score 0
{PREFIX:NAME}:values   a hash from key to value
{PREFIX:NAME}:lease    the token of the relay that has the part; Redis lets it expire
{PREFIX:NAME}:written  how many batches that relay has written
PREFIX:notices         a list of names of parts that were left with mail in them: hints
"""

WRITE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local written = tonumber(redis.call('GET', KEYS[4]) or 0)
if tonumber(ARGV[2]) == written then return 1 end
if tonumber(ARGV[2]) ~= written + 1 then return -1 end
redis.call('SET', KEYS[4], ARGV[2])
local at = 4
for _ = 1, tonumber(ARGV[3]) do
  redis.call('ZADD', KEYS[2], 0, ARGV[at])
  redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 1])
  at = at + 2
end
for i = at, #ARGV do
  redis.call('ZREM', KEYS[2], ARGV[i])
  redis.call('HDEL', KEYS[3], ARGV[i])
end
return 1
"""
READ = """
local found = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
if #found == 0 then return {found, {}} end
return {found, redis.call('HMGET', KEYS[2], unpack(found))}
"""
TAKE = """
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then return false end
if held then return held end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], 0)
return false
"""
RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
GIVE_BACK = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class Part:
    """The names of a part's keys in Redis; one slot of a cluster."""

    def __init__(self, prefix: str, name: str) -> None:
        self.index = f"{{{prefix}:{name}}}:keys"
        self.values = f"{{{prefix}:{name}}}:values"
        self.lease = f"{{{prefix}:{name}}}:lease"
        self.written = f"{{{prefix}:{name}}}:written"
