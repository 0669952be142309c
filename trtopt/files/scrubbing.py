"""Remove private values from texts: values that look like secrets, and names of users and hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_OF_LOGINS = re.compile(r"XDG_SESSION_|(DESKTOP_|GDM)SESSION$")
"""Common words that are no secrets, such as user, ubuntu and plasma."""
_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS|(?<=\w)(?<!OLD)PWD|CREDENTIAL|AUTH|COOKIE|SESSION", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"://[^/@\s]*:([^/@\s]+)@")
"""A password in an address, as of a proxy or a package index."""
_SHORTEST = 4
"""Secrets below this length are also common words: texts are not searched for them."""


def secret_words(environment: Mapping[str, str]) -> dict[str, str]:
    """Values of variables whose names look like secrets, and passwords in addresses, with their replacements.

    Also in JSON escapes. Longest first, as one may contain another.
    """
    words = {
        value for name, value in environment.items() if _SECRET.search(name) and not _OF_LOGINS.match(name)
    }
    words |= {word for value in environment.values() for word in _IN_ADDRESS.findall(value)}
    words |= {json.dumps(word, ensure_ascii=escaped)[1:-1] for word in words for escaped in (False, True)}
    return _longest_first({word: "***" for word in words if len(word) >= _SHORTEST})


def private_words(environment: Mapping[str, str], *, user: str, host: str, home: str) -> dict[str, str]:
    """Secrets, home folder, names of user and host, with their replacements; longest first."""
    names = {word: shown for word, shown in ((home, "~"), (user, "USER"), (host, "HOST")) if len(word) > 1}
    return _longest_first(secret_words(environment) | names)


def _longest_first(words: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(words.items(), key=lambda item: -len(item[0])))


def scrubbed(text: str, words: Mapping[str, str]) -> str:
    """`text` without `words`: names of users and hosts where they stand alone, all else wherever it is."""
    for word, shown in words.items():
        if shown in ("USER", "HOST"):
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", shown, text)
        else:
            text = text.replace(word, shown)
    return text
