"""The requests of what serves: `plan` and `deploy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from trtopt.options import Argument, Option, Output
from trtopt.requests.shared import Request, Timeout, parse_bytes, parse_shares_of_lengths

Trust = Annotated[
    Sequence[str],
    Option("Load this plugin, which engines need: native code.", metavar="LIB.so", is_path=True),
]


@dataclass(frozen=True)
class PlanRequest(Request):
    sources: Annotated[
        Sequence[str | Path],
        Argument(
            "folders of `trtopt sweep`, or build folders with the result of `trtopt bench` as `bench.json`.",
            metavar="SWEEP...",
        ),
    ]
    output: Annotated[str | Path, Output("Plan file to write.", "plan")]
    _: KW_ONLY
    slo: Annotated[
        str,
        Option(
            "A percentile of latency, waiting included, and its limit, as p99=10ms (us, ms or s).",
            metavar="pN=LIMIT",
        ),
    ]
    rate: Annotated[
        float | None,
        Option(
            "Requests per second [default: the highest sustainable rate].", metavar="N", range=(0.001, 10**9)
        ),
    ] = None
    arrivals: Annotated[
        str,
        Option(
            "poisson, constant, or a file with one time in seconds per line.",
            metavar="HOW|FILE",
            names=lambda: ("poisson", "constant"),
            is_path=True,
        ),
    ] = "poisson"
    lengths: Annotated[
        Mapping[int, float] | None,
        Option(
            "Shares of requests by their length, for a model swept over lengths.",
            metavar="N:SHARE,…",
            parse=parse_shares_of_lengths,
            is_repeated=False,
        ),
    ] = None
    memory_bytes: Annotated[
        int | None,
        Option(
            "Limit of device memory, as 8GiB [default: none].",
            python="limit of device memory, in bytes [default: none].",
            flag="--memory",
            metavar="SIZE",
            parse=parse_bytes,
            range=(1, 1 << 60),
        ),
    ] = None
    max_engines: Annotated[int, Option("Maximum number of engines to combine.", range=(1, 4))] = 3
    for_triton: Annotated[
        bool,
        Option("Only setups that `trtopt deploy triton` can write."),
    ] = False
    timeout: Annotated[
        Timeout, "Seconds that measuring the serving cost may take, and verifying [default: no limit]."
    ] = None
    trust: Trust = ()
    verify: Annotated[
        bool,
        Option("Run the plan under its load, and show prediction and measurement."),
    ] = False


@dataclass(frozen=True)
class DeployRequest(Request):
    source: Annotated[
        str | Path,
        Argument("what `trtopt plan` wrote, or a folder of `trtopt sweep` or `trtopt build`."),
    ]
    output: Annotated[str | Path, Output("The model repository's folder.", "folder")]
    _: KW_ONLY
    name: Annotated[str | None, Option("The model's name [default: that of SOURCE].", metavar="NAME")] = None
    trust: Trust = ()
