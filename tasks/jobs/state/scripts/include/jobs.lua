-- Jobs: their states, and the fields that are immutable or changed by a single script.
local jobs, known = {}, {}

-- Return the fields of a layout, see tasks/jobs/state/layout.py. The default layout is ''.
local function parse_layout(layout) return layout and layout ~= '' and cjson.decode(layout) or {} end

-- Return whether items of a job in this state are dispatched and counted. False for a job that does not exist.
function jobs.is_runnable(state) return constants.RUNNABLE[state or ''] == true end

function jobs.state(job_id) return redis.call('HGET', keys.job(job_id), 'state') end

-- Return the fields of a job that scripts need for every item. Read once per call of a script.
function jobs.facts(job_id)
  local facts = known[job_id]
  if not facts then
    local info = redis.call('HMGET', keys.job(job_id),
      'part_items', 'total', 'keep_items', 'trimmed', 'kind', 'layout', 'first')
    facts = {part_items = tonumber(info[1] or 0), total = tonumber(info[2] or 0),
      keep_items = tonumber(info[3] or 0), trimmed = tonumber(info[4] or 0),
      kind = info[5] or '', trials = parse_layout(info[6]).trials or 1, first = info[7]}
    known[job_id] = facts
  end
  return facts
end

-- Convert a number of rows to a number of items: if an item is run several times, each trial is a row.
function jobs.items_of(job_id, rows) return math.floor(tonumber(rows) / jobs.facts(job_id).trials) end

-- Return the part of a stored job that an item belongs to. Other jobs have part 0 only.
function jobs.part_of(job_id, index)
  local part_items = jobs.facts(job_id).part_items
  return part_items > 0 and math.floor(index / part_items) or 0
end

-- Return the number of items in a part.
function jobs.part_size(job_id, part)
  local facts = jobs.facts(job_id)
  return math.min(facts.part_items, facts.total - part * facts.part_items)
end

-- Return the layout that describes how the items are stored: `folder`, `trials`, `prompts`, each absent where it does
-- not apply.
function jobs.layout(job_id) return parse_layout(redis.call('HGET', keys.job(job_id), 'layout')) end

-- Return the stages of a job in order, each with `name`, `pool` and `grouped`.
function jobs.stages(job_id) return cjson.decode(redis.call('HGET', keys.job_definition(job_id), 'stages')) end

return jobs
