-- Settings of luacheck for the scripts that Redis runs. `python -m tasks.lua --check` runs it on the assembled scripts.
std = "lua51"
read_globals = {"redis", "cjson", "KEYS", "ARGV"}
max_line_length = 120
