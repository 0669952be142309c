"""What of the log is shown to whom."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import click
import pytest

from trtopt import logs
from trtopt.cli.main import COMMANDS, cli
from trtopt.workers.worker import Progress, reporter


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """Handlers and level as they were."""
    handlers, level = list(logs.LOG.handlers), logs.LOG.level
    yield
    logs.LOG.handlers[:] = handlers
    logs.LOG.setLevel(level)


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", each) for inner, each in command.commands.items())
        else:
            yield name, command


def test_every_command_tells_of_its_work_once() -> None:
    for _ in range(2):  # asking twice adds nothing
        for name, command in commands():
            given = [param.name for param in command.params]
            assert (given.count("verbose"), given.count("log_file")) == (1, 1), name


def test_trtopts_own_warnings_are_shown_and_nothing_else_unless_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(2):  # as two commands in one process do
        logs.show(0)
    logging.getLogger("trtopt.somewhere").warning("little memory")
    logging.getLogger("trtopt.somewhere").info("all is well")
    logs.heard("tensorrt", "warning", "a cast of INT64")
    logs.LOG.error("said already")
    told = capsys.readouterr().err
    assert "little memory" in told
    assert len(told.splitlines()) == 1


def test_what_a_worker_logs_is_logged_under_its_own_time_and_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent: list[logs.Logged] = []
    with logs.relay(logging.INFO, sent.append):
        logs.heard("tensorrt", "info", "100 % of the tactics")
        logs.heard("tensorrt", "verbose", "not asked for")
    logs.heard("tensorrt", "info", "too late")
    (told,) = sent
    caplog.set_level(logging.INFO, "trtopt")
    logs.log_relayed(told, 4711)
    again = caplog.records[-1]
    assert (again.process, again.created) == (4711, told.at)
    assert (again.name, again.getMessage()) == ("trtopt.heard.tensorrt", "100 % of the tactics")


def test_what_logs_while_a_message_is_being_sent_waits_for_nobody() -> None:
    """As native code does whose objects are collected just then, while another thread logs too."""
    waits = threading.Event()

    class Text:
        def __str__(self) -> str:
            waits.set()
            return "meanwhile"

    class Channel:
        sent: ClassVar[list[bytes]] = []

        def sendall(self, message: bytes) -> None:
            if not waits.is_set():
                threading.Thread(target=logs.heard, args=("tensorrt", "warning", Text()), daemon=True).start()
                assert waits.wait(60)
                logs.heard("tensorrt", "warning", "deleted")
            self.sent.append(message)

    report = reporter(Channel())  # type: ignore[arg-type]
    sending = threading.Thread(target=report, args=(Progress(phase="building", fraction=None),), daemon=True)
    with logs.relay(logging.WARNING, report):
        sending.start()
        sending.join(60)
    assert not sending.is_alive()
    sent = b"".join(Channel.sent)
    assert sent.index(b"deleted") < sent.index(b"building")


def test_a_log_that_fails_stops_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = False
    with suppress(OSError), Path("/dev/full").open("w", buffering=1) as full:  # closing it flushes once more
        monkeypatch.setattr(sys, "stderr", full)
        logs.show(1)
        logs.heard("tensorrt", "info", "said into the void")
        goes_on = True
    assert goes_on


def test_passwords_in_addresses_and_secrets_as_json_writes_them_are_taken_out_anywhere() -> None:
    secrets = logs.secrets_in(
        {
            "PWD": "/work",
            "OLDPWD": "/work",
            "DB_PWD": "hush",
            "API_KEY": 'a"\nb',
            "PROXY": "http://ann:open@box/",
            "PASS": "x",
            "XDG_SESSION_CLASS": "banner",
        }
    )
    told = json.dumps({"k": 'a"\nb', "p": "http://ann:open@box/", "d": "xhushx banner", "at": "/work"})
    shown = '{"k": "***", "p": "http://ann:***@box/", "d": "x***x banner", "at": "/work"}'
    assert logs.without_secrets(told, secrets) == shown
