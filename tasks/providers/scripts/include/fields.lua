-- Fields of hashes that were read as tables.
local fields = {}

-- Return a field as a number.
function fields.number(hash, field, otherwise) return tonumber(hash[field] or otherwise or 0) end

return fields
