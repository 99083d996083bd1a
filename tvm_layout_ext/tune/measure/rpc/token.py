"""The word that a tuner and its servers share, so that a server runs nobody else's code."""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence

from ....errors import TargetError

VARIABLE = "TVM_LAYOUT_EXT_RPC_TOKEN"
_MARK = "-token="


def shared() -> str:
    """The token of the environment, empty if there is none; TargetError if it has spaces."""
    token = os.environ.get(VARIABLE, "")
    if token.split() != [token] * bool(token):
        raise TargetError(f"{VARIABLE} has spaces; a token is one word: openssl rand -hex 16")
    return token


def behind(key: str) -> str:
    """The key of a session, and behind it the token."""
    token = shared()
    return f"{key} {_MARK}{token}" if token else key


def allowed(words: Sequence[str], token: str) -> bool:
    """Whether the words behind a key have a token, in a time that tells nothing of it."""
    given = next((word.removeprefix(_MARK) for word in words if word.startswith(_MARK)), "")
    return hmac.compare_digest(given.encode(), token.encode())
