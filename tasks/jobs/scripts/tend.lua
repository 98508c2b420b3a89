-- Look after all rollouts: batches whose lease is over go back, and as many prompts are begun as may be.
-- ARGV  1 seconds after which a rollout that nobody asks anything is ended
for _, job in ipairs(redis.call('SMEMBERS', key_rollouts())) do
  local state = redis.call('HGET', key_job(job), 'state')
  if not state then
    forget_rollout(job)
  else
    give_back_lapsed(job)
    local touched = redis.call('HGET', key_rollout(job), 'touched_at') or redis.call('HGET', key_job(job), 'created_at')
    if is_active(state) and now() - tonumber(touched) > tonumber(ARGV[1]) then end_job(job, 'cancelled', 'idle') else feed(job) end
  end
end
