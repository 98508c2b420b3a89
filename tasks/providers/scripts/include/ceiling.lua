-- Adaptive limit of calls in flight (the ceiling), as in Inspect AI. It doubles after every round without errors until
-- the first 429, then grows by a twentieth per round. A 429 cuts it by a fifth, once per DEBOUNCE_S or Retry-After. An
-- error of the API only restarts the round. A round is a number of answers equal to the ceiling, and raises the ceiling
-- only if at least four fifths of it were in use.
-- @include clock
-- @include fields
local ceiling = {}

local DEBOUNCE_S, SATURATED, CUT, GROWTH = 15, 0.8, 0.8, 0.05

-- Adapt the ceiling to the results of calls. Changes `pace`. Returns the ceiling.
function ceiling.adapt(pace, limits, report, in_flight, now)
  local most = limits.concurrency
  local least = math.min(limits.concurrency_min, most)
  local height = math.max(least, math.min(most, fields.number(pace, 'ceiling', limits.concurrency_start)))
  local answers, peak = fields.number(pace, 'answers'), math.max(fields.number(pace, 'peak'), in_flight)
  if report.limited > 0 then
    local cut_until, debounce_s = fields.number(pace, 'cut_until'), 0
    if now >= cut_until then
      height = math.max(least, math.floor(height * CUT))
      debounce_s = DEBOUNCE_S
    end
    pace.cut_until = clock.stamp(math.max(cut_until, now + math.max(report.retry_after_s, debounce_s)))
    pace.was_limited, answers, peak = '1', 0, 0
  elseif report.failed > 0 then
    answers, peak = 0, 0
  else
    answers = answers + report.ok
    if answers >= height then
      if peak >= SATURATED * height then
        height = pace.was_limited and height + math.max(1, math.floor(height * GROWTH)) or height * 2
        height = math.min(most, height)
      end
      answers, peak = 0, 0
    end
  end
  pace.ceiling, pace.answers, pace.peak = tostring(height), tostring(answers), tostring(peak)
  return height
end

return ceiling
