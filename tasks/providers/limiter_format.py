"""Numbers in the limiter's records, for Python and for the Lua scripts (`tasks/script_constants.py`)."""

#: Seconds for which a process's report of its calls in flight stays valid.
HOLDER_S = 10.0
#: Seconds for which the records of a profile are kept after its last call.
API_KEPT_S = 3600
