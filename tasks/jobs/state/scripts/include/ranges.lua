-- Sets of items, written as ranges of their indices: "0-4,7".
--
-- An entry of a pending list is a set with an optional prefix:
--   "0-4,7"   items that may be divided among chunks
--   "=0-4,7"  items that must be in the same chunk: a whole group
--   "!0-4,7"  items that must be in the same chunk and run with no other item: one of them may have killed its worker
local ranges = {}

-- Return an iterator over the ranges of a set: first index, last index.
function ranges.each(set)
  local next_range = string.gmatch(set, '(%d+)%-?(%d*)')
  return function()
    local first, last = next_range()
    if first then return tonumber(first), tonumber(last ~= '' and last or first) end
  end
end

-- Return the indices of a set as a list.
function ranges.expand(set)
  local indices = {}
  for first, last in ranges.each(set) do
    for index = first, last do indices[#indices + 1] = index end
  end
  return indices
end

-- Return a list of indices as a set. Sorts the list in place.
function ranges.compress(indices)
  table.sort(indices)
  local parts, at = {}, 1
  while at <= #indices do
    local last = at
    while indices[last + 1] == indices[last] + 1 do last = last + 1 end
    parts[#parts + 1] = last > at and (indices[at] .. '-' .. indices[last]) or tostring(indices[at])
    at = last + 1
  end
  return table.concat(parts, ',')
end

-- Return the number of items in a set or an entry.
function ranges.count(set)
  local total = 0
  for first, last in ranges.each(set) do total = total + last - first + 1 end
  return total
end

return ranges
