-- Typed access to fields of hashes that were read as tables.
local fields = {}

-- Return a field as a number; `otherwise`, or 0, if the hash lacks it.
function fields.number(hash, field, otherwise) return tonumber(hash[field] or otherwise or 0) end

return fields
