-- Redis commands with lists of any length, and hashes as tables.
--
-- No script may use INCRBYFLOAT. Redis 6.2 rewrites it to SET ... KEEPTTL in the argument array that it keeps for
-- scripts, and then assumes a wrong length for that array: the next command with many arguments causes a buffer
-- overrun, and the server crashes.
local commands = {}

-- Number of arguments that `unpack` can push on the stack of Lua at once.
local PAGE = 2000

-- Call a command with a long list of arguments, page by page. The list may be empty.
function commands.in_pages(command, key, list)
  for at = 1, #list, PAGE do redis.call(command, key, unpack(list, at, math.min(at + PAGE - 1, #list))) end
end

-- Return a hash as a table.
function commands.read_hash(key)
  local flat, hash = redis.call('HGETALL', key), {}
  for at = 1, #flat, 2 do hash[flat[at]] = flat[at + 1] end
  return hash
end

return commands
