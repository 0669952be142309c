"""Mutations of files: of bytes, and of what the bytes stand for. All chance is the given generator's."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

Mutate = Callable[[Random, bytes], bytes]
"""From a seed file to a damaged or hostile one."""

NUMBERS = (0, 1, 2, 127, 128, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = (
    "",
    " ",
    "x",
    ".",
    "..",
    "../../etc/passwd",
    "/etc/passwd",
    "a/../../b",
    "~",
    "\0",
    "a\0b",
    "\x1b[2J",
    "\ud800",
    "\u202etxt",
    "</script><script>alert(1)</script>",
    "{{7*7}}",
    "%s%n",
    "N",
    "?",
    "-1",
    "nan",
    "name\nwith\nlines",
    "ä" * 300,
    "x" * 5000,
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [None], {"": None}, [1, 2, 3], ["x"]),
    *(-1, -(2**31), -(2**63), -(2**70), 2**70, 10**400, 0.5, -0.0, 1e-320, 1e300, -1e308, 1e16),
    *(float("nan"), float("inf"), -float("inf")),
    *NUMBERS,
    *TEXTS,
)
_DEEP = "@deep@"
_DEPTHS = (40, 500, 5_000, 200_000)


def some(rng: Random, most: int = 4) -> range:
    """One turn as a rule, several at times."""
    return range(rng.randint(1, most) if rng.random() < 0.4 else 1)


# ── bytes ───────────────────────────────────────────────────────────────────────────────────────────────


def bytes_changed(rng: Random, content: bytes) -> bytes:
    """Flips, cuts, copies and insertions that know nothing of the format."""
    data = bytearray(content)
    for _ in some(rng, 8):
        at = rng.randrange(len(data) + 1)
        size = min(int(rng.expovariate(1 / 12)) + 1, len(data) - at)
        change = rng.randrange(7)
        if change == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif change == 1 and at < len(data):
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif change == 2:
            del data[at : at + size]
        elif change == 3:
            data[at:at] = data[at : at + size] * rng.choice((1, 2, 100))
        elif change == 4:
            data[at:at] = rng.randbytes(size)
        elif change == 5:
            data[at : at + 8] = rng.choice(NUMBERS).to_bytes(8, rng.choice(("little", "big")))[
                : len(data) - at
            ]
        elif rng.random() < 0.2:
            del data[at:]
    return bytes(data)


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────


def json_changed(rng: Random, content: bytes) -> bytes:
    """Values replaced, removed, exchanged, wrapped and nested; keys renamed; at times only bytes changed."""
    if rng.random() < 0.1:
        return bytes_changed(rng, content)
    holder = [json.loads(content)]
    for _ in some(rng):
        _change_tree(rng, holder)
    text = json.dumps(holder[0])
    depth = rng.choice(_DEPTHS)
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
    text = text.replace(f'"{_DEEP}"', opening * depth + ("1" if opening != "[" else "") + closing * depth)
    return text.encode()


def _change_tree(rng: Random, holder: list[Any]) -> None:
    places = list(_places(holder))
    where, key = _chosen(rng, places)
    found = where[key]
    change = rng.randrange(9)
    if change == 0 and isinstance(where, dict):
        del where[key]
    elif change == 1 and isinstance(where, dict):
        where[rng.choice((*where, *TEXTS))] = where.pop(key)
    elif change == 2:
        other, at = _chosen(rng, places)
        where[key] = json.loads(json.dumps(other[at]))
    elif change == 3:
        where[key] = [found] if rng.random() < 0.5 else {"x": found}
    elif change == 4 and isinstance(found, list) and found:
        found[:] = rng.choice(([], found[:1], found[:-1], found + found, found[::-1]))
    elif change == 5 and isinstance(found, (int, float)) and not isinstance(found, bool):
        where[key] = rng.choice(
            (
                -found,
                found + 1,
                found - 1,
                found * 10**6,
                abs(found) / 3 if abs(found) < 1e300 else 0.5,
                str(found)[:4000],
                0,
            )
        )
    elif change == 6 and rng.random() < 0.2:
        where[key] = _DEEP
    elif isinstance(found, str) and rng.random() < 0.5:
        where[key] = rng.choice(TEXTS)
    else:
        where[key] = deepcopy(rng.choice(VALUES))  # what is changed next must not be the choice itself


def _places(holder: Any) -> Any:
    for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
        yield holder, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def _chosen(rng: Random, places: list[Any]) -> Any:
    """A place; elements of lists, of which files hold thousands, are taken one time in four."""
    for _ in range(20):
        where, key = rng.choice(places)
        if isinstance(where, dict) or rng.random() < 0.25:
            return where, key
    return places[0]


# ── Protocol Buffers ────────────────────────────────────────────────────────────────────────────────────

Field = list[Any]
"""[number, wire type, value]: an int, bytes, or a list of fields where the bytes parse as a message."""


def message_changed(rng: Random, content: bytes) -> bytes:
    """Fields of any depth removed, doubled, moved, given other numbers, names and values of the same file."""
    if rng.random() < 0.15:
        return bytes_changed(rng, content)
    message = _parsed(content)
    if message is None:
        return bytes_changed(rng, content)
    for _ in some(rng):
        _change_message(rng, message)
    return _written(message)


def _change_message(rng: Random, message: list[Field]) -> None:
    places = list(_messages(message))
    parent = rng.choice(places)
    if not parent:
        return
    at = rng.randrange(len(parent))
    number, kind, found = parent[at]
    change = rng.randrange(9)
    if change == 0:
        del parent[at]
    elif change == 1:
        parent.insert(at, deepcopy(parent[at]))
    elif change == 2:
        other = rng.randrange(len(parent))
        parent[at], parent[other] = parent[other], parent[at]
    elif change == 3:  # a name, type or tensor of elsewhere in the file
        like = [field for other in places for field in other if field[0] == number and field[1] == kind]
        parent[at] = deepcopy(rng.choice(like))
    elif change == 4:
        parent[at][0] = rng.choice((number + 1, max(1, number - 1), rng.randint(1, 30)))
    elif change == 5 and isinstance(found, list):
        for _ in range(rng.choice((1, 30, 120))):  # a message inside of itself
            parent[at] = [number, kind, [*found, parent[at]]]
    elif kind == 0:
        parent[at][2] = rng.choice((*NUMBERS, rng.randrange(30), 2**64 - rng.randint(1, 9)))
    elif isinstance(found, bytes):
        replaced = rng.choice(TEXTS).encode(errors="surrogatepass")
        parent[at][2] = replaced if rng.random() < 0.4 else bytes_changed(rng, found)
        if kind in (1, 5):
            parent[at][2] = parent[at][2][: len(found)].ljust(len(found), b"\0")


def _messages(message: list[Field]) -> Any:
    yield message
    for _, _, value in message:
        if isinstance(value, list):
            yield from _messages(value)


def _parsed(data: bytes) -> list[Field] | None:
    """The fields of a message, None if these bytes are none."""
    fields: list[Field] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if at < 0 or kind not in (0, 1, 2, 5) or not 0 < tag >> 3 < 100:
            return None
        if kind == 0:
            value, at = _varint(data, at)
            if at < 0:
                return None
            fields.append([tag >> 3, kind, value])
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            size, at = _varint(data, at)
        if at < 0 or at + size > len(data):
            return None
        inner = data[at : at + size]
        nested = _parsed(inner) if kind == 2 and 1 < size < 4096 else None
        fields.append([tag >> 3, kind, inner if nested is None else nested])
        at += size
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return value, at + 1
        at, shift = at + 1, shift + 7
    return 0, -1


def _written(message: list[Field]) -> bytes:
    out = bytearray()
    for number, kind, value in message:
        out += _as_varint(number << 3 | kind)
        if kind == 0:
            out += _as_varint(value)
            continue
        content = _written(value) if isinstance(value, list) else value
        out += (_as_varint(len(content)) if kind == 2 else b"") + content
    return bytes(out)


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


# ── TOML ────────────────────────────────────────────────────────────────────────────────────────────────

_TOML_VALUES = (
    *("0", "-1", "1e400", "nan", "inf", "9" * 5000, "0x" + "f" * 40, "true", '""', "''", "[]", "{}"),
    *("1979-05-27", "07:32:00", '["x"]', "[1, [2]]", "{a = 1}", '"../../x"', '"\\u0000"', '"\\uD800"'),
    *("[" * 20_000, "[" * 300 + "]" * 300, "{a=" * 20_000, '"""', "[1,", "= =", "99999999999999999999"),
)
_TOML_LINES = (
    "[a]",
    "[[a]]",
    "a.b.c = 1",
    ".".join("a" * 9000) + " = 1",
    "[" + ".".join("a" * 9000) + "]",
    "=",
)


def toml_changed(rng: Random, content: bytes) -> bytes:
    """Values, keys and lines replaced, doubled, removed and made deep; at times only bytes changed."""
    if rng.random() < 0.2:
        return bytes_changed(rng, content)
    lines = content.decode().splitlines()
    for _ in some(rng):
        at = rng.randrange(len(lines)) if lines else 0
        key, equals, _ = lines[at].partition("=") if lines else ("", "", "")
        change = rng.randrange(6)
        if change <= 2 and equals:
            lines[at] = f"{key}= {rng.choice(_TOML_VALUES)}"
        elif change == 3 and lines:
            lines[at : at + 1] = rng.choice(([], [lines[at]] * 2, lines[at : at + 1]))
        elif change == 4:
            lines.insert(at, rng.choice(_TOML_LINES))
        elif equals:
            lines[at] = f"{rng.choice(TEXTS[1:])}={lines[at].partition('=')[2]}"
    return "\n".join(lines).encode(errors="surrogatepass")
