-- How many calls may be in flight: as Inspect AI adapts it. Doubles after every clean round until the first 429, then grows by a
-- twentieth; a 429 takes a fifth, once per DEBOUNCE_S or Retry-After; errors of the API only begin the round anew. A round is as
-- many answers as the ceiling is high, and counts only if four fifths of it were used.

local DEBOUNCE_S, SATURATED, CUT, GROWTH = 15, 0.8, 0.8, 0.05

-- Changes `pace`; returns the ceiling.
local function adapt(pace, limits, told, in_flight, now)
  local most = limits.concurrency
  local least = math.min(limits.concurrency_min, most)
  local ceiling = number(pace, 'ceiling', limits.concurrency_start)
  ceiling = math.max(least, math.min(most, ceiling))
  local answers, peak = number(pace, 'answers'), math.max(number(pace, 'peak'), in_flight)
  if told.limited > 0 then
    if now >= number(pace, 'cut_until') then ceiling = math.max(least, math.floor(ceiling * CUT)) end
    pace.cut_until = stamp(math.max(number(pace, 'cut_until'), now + math.max(told.retry_after_s,
      now >= number(pace, 'cut_until') and DEBOUNCE_S or 0)))
    pace.was_limited, answers, peak = '1', 0, 0
  elseif told.failed > 0 then
    answers, peak = 0, 0
  else
    answers = answers + told.ok
    if answers >= ceiling then
      if peak >= SATURATED * ceiling then
        ceiling = pace.was_limited and ceiling + math.max(1, math.floor(ceiling * GROWTH)) or ceiling * 2
        ceiling = math.min(most, ceiling)
      end
      answers, peak = 0, 0
    end
  end
  pace.ceiling, pace.answers, pace.peak = tostring(ceiling), tostring(answers), tostring(peak)
  return ceiling
end
