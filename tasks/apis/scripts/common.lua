-- What the parts of `exchange.lua` share. Prepended to it, after the key functions of config/keys.py; then its parts, by name.
-- No script may use INCRBYFLOAT, see tasks/jobs/scripts/common.lua.

local HOUR_S = 3600

local function read_clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local function stamp(number) return string.format('%.6f', number) end

local function read_hash(key)
  local flat, hash = redis.call('HGETALL', key), {}
  for at = 1, #flat, 2 do hash[flat[at]] = flat[at + 1] end
  return hash
end

local function number(hash, field, otherwise) return tonumber(hash[field] or otherwise or 0) end
