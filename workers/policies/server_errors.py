"""What a policy server's error means: the traceback that it sends as a text frame before it closes."""

import re

from tasks.errors import PolicyBroken, PolicyFailed

#: The last line of a traceback: the error's class and what it says.
_LAST = re.compile(r"^(?:[\w.]+\.)?(\w+)(?::|$)")
#: What Python raises when the observation is not what the policy takes. It would be the same on every try and server.
_OF_THE_REQUEST = ("AssertionError", "AttributeError", "IndexError", "KeyError", "TypeError", "ValueError")
MAX_CHARS = 300


def read_failure(traceback: str, server: str) -> PolicyFailed | PolicyBroken:
    """Blame the request where the class of the error does; all else (memory, CUDA, files) is the server's, and the
    request may pass elsewhere or later."""
    last = last_line(traceback)
    found = _LAST.match(last)
    if found and found[1] in _OF_THE_REQUEST:
        return PolicyFailed(f"The policy server {server} cannot use the observation: {last}")
    return PolicyBroken(f"The policy server {server} broke: {last}")


def last_line(traceback: str) -> str:
    lines = [line.strip() for line in traceback.splitlines() if line.strip()]
    # Messages may go on after the line with the class: find that one, but never a line of the traceback's own.
    for line in reversed(lines):
        if re.match(r"[\w.]*(?:Error|Exception|Interrupt|Exit)\b", line):
            return line[:MAX_CHARS]
    return lines[-1][:MAX_CHARS] if lines else "it does not say why"
