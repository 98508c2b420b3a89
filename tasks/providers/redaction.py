"""Text of an API as it may be shown: without keys, whatever it quotes."""

import re
from collections.abc import Iterable

HIDDEN = "***"
#: What looks like a key or a token, also when it is not ours.
_KEYS = re.compile(r"\b(?:sk|pk|rk|gsk|hf|bce-v3)[-_/][A-Za-z0-9_\-/*.]{6,}|(?i:bearer)\s+[^\s\"',;]+")
_LOGIN = re.compile(r"(https?://)[^\s/@]+@")
#: Characters of a message that are kept.
MOST_CHARACTERS = 500


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    for secret in sorted(secrets, key=len, reverse=True):  # one may be the beginning of another
        if len(secret) >= 4:
            text = text.replace(secret, HIDDEN)
    text = _LOGIN.sub(rf"\1{HIDDEN}@", _KEYS.sub(HIDDEN, text))
    text = " ".join(text.split())
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + " ..."
