-- Groups of items. A group is named by the index of its first item, and stored with a fixed number of digits per item.
local groups = {}

-- Return the group of an item.
function groups.of(job_id, index)
  local page, at = math.floor(index / constants.PAGE_ITEMS), index % constants.PAGE_ITEMS * constants.GROUP_DIGITS
  local digits = redis.call('GETRANGE', keys.job_groups(job_id, page), at, at + constants.GROUP_DIGITS - 1)
  return tostring(tonumber(digits))
end

-- Return the items of a group, as ranges.
function groups.members(job_id, group) return redis.call('HGET', keys.job_members(job_id), group) end

return groups
