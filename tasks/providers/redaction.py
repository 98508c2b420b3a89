"""Redaction of API messages: removes keys, tokens and logins from a text before it is shown."""

import re
from collections.abc import Iterable

HIDDEN = "***"
#: Texts with the form of an API key or a bearer token, including unknown keys.
_KEYS = re.compile(r"\b(?:sk|pk|rk|gsk|hf|bce-v3)[-_/][A-Za-z0-9_\-/*.]{6,}|(?i:bearer)\s+[^\s\"',;]+")
_LOGIN = re.compile(r"(https?://)[^\s/@]+@")
#: Maximum characters of a redacted message.
MOST_CHARACTERS = 500


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    for secret in sorted(secrets, key=len, reverse=True):  # longest first: a secret may be a prefix of another
        if len(secret) >= 4:
            text = text.replace(secret, HIDDEN)
    text = _LOGIN.sub(rf"\1{HIDDEN}@", _KEYS.sub(HIDDEN, text))
    text = " ".join(text.split())
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + " ..."
