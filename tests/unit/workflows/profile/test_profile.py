"""What a profile may be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from trtopt.errors import UsageError
from trtopt.requests.measure import ProfileRequest
from trtopt.workflows.profile.profile import check_request


@pytest.mark.parametrize(
    ("flag", "given"),
    [
        ("--backend", {"backend": "tensorrt"}),
        ("--duration", {"duration": 7.0}),
        ("--data", {"data": "x.npz"}),
    ],
)
def test_options_of_the_measurement_are_refused_where_a_result_file_is_given(
    flag: str, given: dict[str, Any]
) -> None:
    check_request(ProfileRequest("engines", **given))
    with pytest.raises(UsageError, match=f"{flag}: has no effect with --result"):
        check_request(ProfileRequest("engines", result="result.json", **given))
