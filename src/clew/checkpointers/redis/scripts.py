"""The Lua scripts of a Redis store. The server runs each script atomically, and writes either all or nothing of it to
its append-only file.

All keys of a call are in one slot of a cluster, and all are named in the call. If the server has evicted a key or was
restored incompletely, some data of a thread may be missing: its head then says another number of frames, or of refs
(digests of blobs), than there are. Scripts report this and never take the rest for the whole thread.
"""

from __future__ import annotations

from hashlib import sha1

__all__ = ["APPEND", "DELETE", "DELETE_BLOBS", "HEADS", "LOOK", "PLACES", "PUT", "READ", "REFS", "REPAIR",
           "RESTORE", "SEAL", "TOUCH", "UNTOUCHED", "Script"]  # fmt: skip


class Script:
    """The text of a Lua script, and its SHA-1 hash. A server that has run the script once can be sent the hash
    alone."""

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
"""Lua code with which other scripts begin. It reads the state of a thread, and ends the script early if some of the
thread's data is missing. KEYS: head, log, refs. `%s` is replaced by the names of further fields of the head to read."""

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
"""

APPEND = Script(
    _STATE % ", 't', 'u', 'c', 'd'"
    + """
local at, count = tonumber(ARGV[1]), tonumber(ARGV[9])
local first = 10 + count
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
if not s[1] and redis.call('SETNX', KEYS[6], 1) == 1 and redis.call('EXISTS', KEYS[4], KEYS[5], KEYS[7]) == 0 then
  for _, listing in ipairs({4, 5, 7}) do redis.call('ZADD', KEYS[listing], 0, '') end
end
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
if (s[7] or '') ~= ARGV[8] then
  if s[7] then redis.call('ZREM', KEYS[7], s[7]) end
  if ARGV[8] ~= '' then
    redis.call('ZADD', KEYS[7], 0, ARGV[8])
    redis.call('HSET', KEYS[1], 'd', ARGV[8])
  else
    redis.call('HDEL', KEYS[1], 'd')
  end
end
if count > 0 then
  for i = 10, first - 1, 1000 do
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
"""Append frames and refs to a thread and replace its head. Returns 1 if that is done, or was done before; otherwise the
reason why nothing was written.

KEYS: head, log, refs, updated, created, threads, due. ARGV: number of the first frame, log id, the thread's places in
the listings by update and by creation, head, ttl in milliseconds or 0, mode, the thread's place in the queue or an
empty text, number of refs, refs, frames. The mode is usually empty. The mode `ask` only checks and writes nothing. The
mode `wait` makes a repeated append write something, because Redis's `WAIT` only waits for what this connection has
written.
"""

LOOK = Script(_STATE % ", 'h'" + "return {s[4], n}")
"""Return a thread's head and its number of frames. KEYS: head, log, refs."""

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
"""Return the number of frames in a thread's log, the log id, and the requested frames, or only the first of them if
they are large. KEYS: head, log, refs. ARGV: number of the first frame to return, number after the last one, and a size
in bytes: once the frames read so far have this size in total, no more are read."""

REFS = Script(_STATE % "" + "return {table.concat(redis.call('SMEMBERS', KEYS[3]))}")

DELETE = Script(
    """
local s = redis.call('HMGET', KEYS[1], 'log', 'u', 'c', 'd')
if s[1] then
  if ARGV[1] ~= 'this' or s[1] ~= ARGV[2] then return 0 end
  redis.call('ZREM', KEYS[4], s[2])
  redis.call('ZREM', KEYS[5], s[3])
  if s[4] then redis.call('ZREM', KEYS[7], s[4]) end
end
return redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
"""
)
"""Delete a thread, either if its log has the given id, or if data of it is left but no head. A thread with another log
id stays, so the call may be repeated. KEYS: as of `APPEND`. ARGV: `this` and the log id for the
first case, `none` and an empty text for the second."""

PLACES = Script(
    """
if not redis.call('ZSCORE', KEYS[1], '') and redis.call('EXISTS', unpack(KEYS)) > 0 then return false end
return table.concat(redis.call('ZREVRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3]))
"""
)
"""Return places (positions of threads in a listing), from the newest on, or nothing if the listing was lost. All places
have the same length and are joined into one text, which is the fastest to parse. The empty member that a complete
listing begins with adds nothing to the text. KEYS: the listing, then the other listings of the
shard and threads, in any order. ARGV: the
newest and the oldest place to return, and the most places to return."""

RESTORE = Script(
    """
local added, out = 0, {0}
for i = 4, #KEYS, 3 do
  local s = redis.call('HMGET', KEYS[i], 'u', 'c', 'd')
  if s[1] and s[2] then
    local new = redis.call('ZADD', KEYS[1], 0, s[1]) + redis.call('ZADD', KEYS[2], 0, s[2])
    if s[3] then new = new + redis.call('ZADD', KEYS[3], 0, s[3]) end
    if new > 0 then added = added + 1 end
  elseif redis.call('EXISTS', KEYS[i], KEYS[i + 1], KEYS[i + 2]) > 0 then
    out[#out + 1] = i
  end
end
out[1] = added
return out
"""
)
"""Put threads into the listings of their shard. Returns the number of threads that were missing in one of them, then the
position of each thread of which only a part is there, as the number of its first key. KEYS: updated, created, due,
then head, log and refs of each thread."""

SEAL = Script(
    """
if ARGV[1] == '0' and redis.call('EXISTS', unpack(KEYS)) == 0 then return 0 end
for _, listing in ipairs({1, 2, 4}) do redis.call('ZADD', KEYS[listing], 0, '') end
redis.call('SET', KEYS[3], 1)
return 1
"""
)
"""Mark the listings of a shard as complete: add the empty member to each, and set the key `threads`. Changes nothing
if the shard has no threads and never had any. KEYS: updated, created, threads, due. ARGV: the number of threads
that were found in the shard."""

HEADS = Script(
    """
local out = {}
for i = 1, #KEYS do out[i] = redis.call('HGET', KEYS[i], 'h') end
return out
"""
)

REPAIR = Script(
    """
local s = redis.call('HMGET', KEYS[1], 'u', 'c', 'd')
if not s[1] and redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then return 0 end
for i = 1, 3 do
  if ARGV[i] ~= '' and s[i] ~= ARGV[i] then redis.call('ZREM', KEYS[i + 3], ARGV[i]) end
end
return 1
"""
)
"""Remove old places of a thread (its positions in the listings). A place that the thread's head names stays. Returns 0
and removes nothing if the head is missing but other data of the thread is there. KEYS: head, log and refs of the thread,
the listings by update and by creation, the queue. ARGV: the places to remove from these three; an empty text for
none."""

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
"""Touch blobs (mark them as just used) and return which of them are missing, as their positions among the digests,
counted from 0. KEYS: the listing of blobs, then the blobs. ARGV: the digests of the blobs, in the same order."""

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
"""Store the blobs that are missing, and touch all of the given blobs (mark them as just used). KEYS: the listing of
blobs, then the blobs. ARGV: the digests of the blobs, then their bytes, both in the order of the keys."""

UNTOUCHED = Script(
    _NOW
    + """
return table.concat(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.17g', now - ARGV[1])))
"""
)
"""Return the digests of the blobs that were not used for at least a given time, joined into one text. KEYS: the listing
of blobs. ARGV: the time in microseconds."""

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
"""Delete those of the given blobs that were not used for at least a given time. KEYS: the listing of blobs, then the
blobs. ARGV: the time in microseconds, then the digests of the blobs in the order of the keys."""
