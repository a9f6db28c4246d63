"""What the server does as one: each script runs with nothing else in between, and is in the append-only file whole or not.

All keys of a call are in one slot, and all are named in the call. A script that finds a thread in part (its head tells of
more or fewer frames or refs than there are, because the server has evicted a key or was restored in part) says so
instead of taking the rest for the whole.
"""

from __future__ import annotations

from hashlib import sha1

__all__ = ["APPEND", "DELETE", "DELETE_BLOBS", "HEADS", "LOOK", "PLACES", "PUT", "READ", "REFS", "REPAIR", "TOUCH",
           "UNTOUCHED", "Script"]  # fmt: skip


class Script:
    """A text of Lua, and the name that the server knows it by once it has seen it."""

    __slots__ = ("sha", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest().encode()


_STATE = """
local s = redis.call('HMGET', KEYS[1], 'n', 'r', 'log'%s)
local n, r = redis.call('LLEN', KEYS[2]), tonumber(s[2] or 0)
if tonumber(s[1] or 0) ~= n or ((s[2] or not s[1]) and redis.call('SCARD', KEYS[3]) ~= r) then
  return {'part', tonumber(s[1] or 0), n, r, redis.call('SCARD', KEYS[3])}
end
"""
"""What is there of a thread: KEYS are its head, log and refs. With further fields of the head."""

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
"""

APPEND = Script(
    _STATE % ", 't', 'u', 'c'"
    + """
local at, count = tonumber(ARGV[1]), tonumber(ARGV[8])
local first = 9 + count
local frames = #ARGV - first + 1
if not s[1] then
  if at > 0 or frames == 0 then return {'absent'} end
elseif s[3] ~= ARGV[2] then
  return {'other'}
elseif n ~= at then
  if frames == 0 or at + frames > n then return {'ends', n} end
  local there = redis.call('LRANGE', KEYS[2], at, at + frames - 1)
  for i = 1, frames do
    if there[i] ~= ARGV[first + i - 1] then return {'ends', n} end
  end
  if ARGV[7] == 'wait' then redis.call('HSET', KEYS[1], 'n', n) end
  return 1
end
if ARGV[7] == 'ask' then return {'free'} end
for i = first, #ARGV, 1000 do
  redis.call('RPUSH', KEYS[2], unpack(ARGV, i, math.min(i + 999, #ARGV)))
end
redis.call('HSET', KEYS[1], 'n', at + frames, 'u', ARGV[3], 'h', ARGV[5])
if s[5] ~= ARGV[3] then
  if s[5] then redis.call('ZREM', KEYS[4], s[5]) end
  redis.call('ZADD', KEYS[4], 0, ARGV[3])
end
if s[6] ~= ARGV[4] then
  if s[6] then redis.call('ZREM', KEYS[5], s[6]) end
  redis.call('ZADD', KEYS[5], 0, ARGV[4])
  redis.call('HSET', KEYS[1], 'log', ARGV[2], 'c', ARGV[4])
end
if count > 0 then
  for i = 9, first - 1, 1000 do
    r = r + redis.call('SADD', KEYS[3], unpack(ARGV, i, math.min(i + 999, first - 1)))
  end
  redis.call('HSET', KEYS[1], 'r', r)
end
local ttl = tonumber(ARGV[6])
if ttl > 0 then
  if s[4] ~= ARGV[6] then redis.call('HSET', KEYS[1], 't', ARGV[6]) end
  for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], ttl) end
elseif s[4] then
  redis.call('HDEL', KEYS[1], 't')
  for i = 1, 3 do redis.call('PERSIST', KEYS[i]) end
end
return 1
"""
)
"""KEYS: head, log, refs, updated, created. ARGV: at, log id, places by update and creation, head, ttl in milliseconds or 0,
mode, number of refs, refs, frames. The mode `ask` writes nothing; `wait` has a repeated append write something, for
`WAIT` waits for what this connection has written. 1 if it is done, else why not."""

LOOK = Script(_STATE % ", 'h'" + "return {s[4], n}")
"""The head, and the number of frames."""

READ = Script(
    _STATE % ""
    + """
local start, stop, room = tonumber(ARGV[1]), math.min(tonumber(ARGV[2]), n), tonumber(ARGV[3])
local out, size, many = {n, s[3]}, 0, 16
while start < stop and size < room do
  local part = redis.call('LRANGE', KEYS[2], start, math.min(start + many, stop) - 1)
  for i = 1, #part do
    size = size + #part[i]
    out[#out + 1] = part[i]
  end
  start = start + #part
  many = math.max(1, math.min(4096, math.floor((room - size) * (#out - 2) / (size + 1))))
end
return out
"""
)
"""ARGV: start, stop, bytes to stop at. How many frames there are, the log id, and the first of those asked for."""

REFS = Script(_STATE % "" + "return {table.concat(redis.call('SMEMBERS', KEYS[3]))}")

DELETE = Script(
    """
local s = redis.call('HMGET', KEYS[1], 'log', 'u', 'c')
if s[1] then
  if ARGV[1] ~= 'this' or s[1] ~= ARGV[2] then return 0 end
  redis.call('ZREM', KEYS[4], s[2])
  redis.call('ZREM', KEYS[5], s[3])
end
return redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
"""
)
"""Removes the thread with this log id, or what is left of one without a head; another log stays. So it may be repeated."""

PLACES = Script(
    "return table.concat(redis.call('ZREVRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3]))",
)
"""Places in a listing, from the newest; all have one length, and come in one piece because that is quickest to parse."""

HEADS = Script(
    """
local out = {}
for i = 1, #KEYS do out[i] = redis.call('HGET', KEYS[i], 'h') end
return out
"""
)

REPAIR = Script(
    """
local s = redis.call('HMGET', KEYS[1], 'u', 'c')
for i = 1, 2 do
  if ARGV[i] ~= '' and s[i] ~= ARGV[i] then redis.call('ZREM', KEYS[i + 1], ARGV[i]) end
end
return 1
"""
)
"""KEYS: head, updated, created. ARGV: places that were found in them. Removes what is not the place of the thread by now."""

TOUCH = Script(
    _NOW
    + """
local missing = {}
for i = 1, #ARGV do
  if redis.call('EXISTS', KEYS[i + 1]) == 1 then
    redis.call('ZADD', KEYS[1], now, ARGV[i])
  else
    redis.call('ZREM', KEYS[1], ARGV[i])
    missing[#missing + 1] = i - 1
  end
end
return missing
"""
)
"""KEYS: the listing of blobs, the blobs. ARGV: their digests. The numbers of those that are missing."""

PUT = Script(
    _NOW
    + """
local count = #KEYS - 1
for i = 1, count do
  if redis.call('EXISTS', KEYS[i + 1]) == 0 then redis.call('SET', KEYS[i + 1], ARGV[count + i]) end
  redis.call('ZADD', KEYS[1], now, ARGV[i])
end
return 1
"""
)
"""KEYS: the listing of blobs, the blobs. ARGV: their digests, then their bytes."""

UNTOUCHED = Script(
    _NOW
    + """
return table.concat(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.17g', now - ARGV[1])))
"""
)
"""ARGV: microseconds. The digests of blobs that nobody has touched for so long."""

DELETE_BLOBS = Script(
    _NOW
    + """
for i = 2, #ARGV do
  local touched = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if touched and tonumber(touched) <= now - ARGV[1] then
    redis.call('UNLINK', KEYS[i])
    redis.call('ZREM', KEYS[1], ARGV[i])
  end
end
return 1
"""
)
"""KEYS: the listing of blobs, the blobs. ARGV: microseconds, digests. Removes those still untouched for so long."""
