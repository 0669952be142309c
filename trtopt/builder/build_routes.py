"""Build routes of TensorRT 11: internal options of the builder, as `-name=value` parted by blanks. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_CHOICES = re.compile(r"\[([^\]]*)\]")
_OPEN_END = "..."


def single_options(listed: str) -> tuple[str, ...]:
    """Each listed option with each of its values but the default, as a route of one option.

    `listed` is the JSON of `IBuilderConfig.all_build_routes`; an option without a closed set of values is
    left out, and so is a list that cannot be read: its form is not documented.
    """
    try:
        options = json.loads(listed)["tuner_options"]
        return tuple(f"{one['option']}={value}" for one in options for value in _others(one))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def _others(option: dict[str, Any]) -> list[str]:
    found = _CHOICES.search(str(option.get("allowed_values", "")))
    if found is None or _OPEN_END in found[1]:
        return []
    values = [value.strip() for value in found[1].split("|")]
    return [value for value in values if value and value != str(option.get("default_value", ""))]


def with_option(route: str | None, option: str) -> str:
    """A route with one option set, in place of another value of it."""
    name = option.partition("=")[0]
    kept = [one for one in (route or "").split() if one.partition("=")[0] != name]
    return " ".join([*kept, option])
