"""Classification of a policy server's errors: it sends a traceback as a text frame before it closes the connection."""

import re

from tasks.errors import PolicyBroken, PolicyFailed

#: The last line of a traceback: the error's class and message.
_LAST = re.compile(r"^(?:[\w.]+\.)?(\w+)(?::|$)")
#: Errors that Python raises for an observation that the policy does not accept. A retry on any server would fail too.
_OF_THE_REQUEST = ("AssertionError", "AttributeError", "IndexError", "KeyError", "TypeError", "ValueError")
MAX_CHARS = 300


def read_failure(traceback: str, server: str) -> PolicyFailed | PolicyBroken:
    """Return PolicyFailed if the class of the error blames the request. Any other error (memory, CUDA, files) is the
    server's: PolicyBroken, as the request may succeed elsewhere or later."""
    last = last_line(traceback)
    found = _LAST.match(last)
    if found and found[1] in _OF_THE_REQUEST:
        return PolicyFailed(f"The policy server {server} cannot use the observation: {last}")
    return PolicyBroken(f"The policy server {server} broke: {last}")


def last_line(traceback: str) -> str:
    lines = [line.strip() for line in traceback.splitlines() if line.strip()]
    # Messages may continue after the line with the class: find the class, but never a line of the traceback itself.
    for line in reversed(lines):
        if re.match(r"[\w.]*(?:Error|Exception|Interrupt|Exit)\b", line):
            return line[:MAX_CHARS]
    return lines[-1][:MAX_CHARS] if lines else "it does not say why"
