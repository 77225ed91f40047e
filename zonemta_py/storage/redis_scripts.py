"""The keys of a partition in Redis, and the scripts that change them. Pure.

    {PREFIX:NAME}:keys     a sorted set whose members are the keys, all with score 0
    {PREFIX:NAME}:values   a hash from key to value
    {PREFIX:NAME}:lease    the token of the relay that has the partition; Redis lets it expire
    {PREFIX:NAME}:written  the number of batches that relay has written
    PREFIX:notices         a list of names of partitions that were released with mail in them: hints

The braces put all keys of a partition into one slot of a cluster.

A Redis without free memory refuses a script whose first write could need more. The first write of these
scripts is a DEL, so that a full queue can be opened and drained; new mail is refused before (decision 62).
"""

# Keys: lease, keys, values, written. Arguments: the token, the number of the batch, how many keys are put,
# how many are removed from the index; then keys and values to put, keys to remove from the index, and
# fields to remove from the hash. Returns 1 when the batch is applied, now or before; 0 for a lost lease;
# -1 for a number out of order.
WRITE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local written = tonumber(redis.call('GET', KEYS[4]) or 0)
if tonumber(ARGV[2]) == written then return 1 end
if tonumber(ARGV[2]) ~= written + 1 then return -1 end
redis.call('DEL', KEYS[4])
redis.call('SET', KEYS[4], ARGV[2])
local at = 5
for _ = 1, tonumber(ARGV[3]) do
  redis.call('ZADD', KEYS[2], 0, ARGV[at])
  redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 1])
  at = at + 2
end
local removed = at + tonumber(ARGV[4])
for i = at, removed - 1 do redis.call('ZREM', KEYS[2], ARGV[i]) end
for i = removed, #ARGV do redis.call('HDEL', KEYS[3], ARGV[i]) end
return 1
"""
# Keys: lease, written. Arguments: the token, milliseconds, a token that is replaced. Returns nil, or the token
# of the holder.
ACQUIRE = """
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then return false end
if held and held ~= ARGV[3] then return held end
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], 0)
return false
"""
# Key: lease. Arguments: the token, milliseconds. Returns 0 for a lost lease.
RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
# Key: lease. Argument: the token. Returns 1 when the lease was this relay's.
RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class RedisKeys:
    """The names of the keys of one partition."""

    def __init__(self, prefix: str, name: str) -> None:
        self.index = f"{{{prefix}:{name}}}:keys"
        self.values = f"{{{prefix}:{name}}}:values"
        self.lease = f"{{{prefix}:{name}}}:lease"
        self.written = f"{{{prefix}:{name}}}:written"


def notifications_key(prefix: str) -> str:
    """The list of notifications."""
    return f"{prefix}:notices"
