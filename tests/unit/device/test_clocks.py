"""Locked clocks are given back, whatever ends their use."""

import pytest

from tests.support.scripted_device.clocks import ScriptedControl
from tests.support.scripted_device.device import Script, ScriptedDevice
from trtopt.device.nvml import locked_clocks
from trtopt.errors import DeviceError


def control(fail_at: tuple[str, int] | None = None) -> tuple[ScriptedControl, list[str]]:
    device = ScriptedDevice(Script(application_mhz=1980, fail_at=fail_at))
    return ScriptedControl(device), device.calls


@pytest.mark.parametrize(("asked", "locked"), [(1500, 1500), (None, 1980)])
def test_clocks_are_held_inside_and_released_after(asked: int | None, locked: int) -> None:
    clocks, calls = control()
    with locked_clocks(clocks, asked) as mhz:
        assert mhz == clocks.locked_mhz == locked
    assert clocks.locked_mhz is None
    assert calls == ["lock", "unlock"]


@pytest.mark.parametrize("end", [DeviceError("gone", ""), KeyboardInterrupt(), SystemExit(143), ValueError()])
def test_clocks_are_released_whatever_ends_the_run(end: BaseException) -> None:
    clocks, _ = control()
    with pytest.raises(type(end)) as caught, locked_clocks(clocks, 1500):
        raise end
    assert caught.value is end
    assert clocks.locked_mhz is None


def test_a_refused_lock_changes_nothing_and_runs_nothing() -> None:
    clocks, calls = control(fail_at=("lock", 1))
    with pytest.raises(DeviceError, match="scripted failure of lock"), locked_clocks(clocks, 1500):
        pytest.fail("nothing may be measured")
    assert calls == ["lock"]


def test_a_signal_while_the_lock_is_being_requested_gives_the_clocks_back() -> None:
    class Interrupted(ScriptedControl):
        def lock(self, mhz: int | None) -> int:
            super().lock(mhz)
            raise KeyboardInterrupt

    device = ScriptedDevice()
    clocks = Interrupted(device)
    with pytest.raises(KeyboardInterrupt), locked_clocks(clocks, 1500):
        pytest.fail("nothing may be measured")
    assert clocks.locked_mhz is None
    assert device.calls == ["lock", "unlock"]


def test_clocks_that_cannot_be_released_are_reported() -> None:
    clocks, _ = control(fail_at=("unlock", 1))
    with pytest.raises(DeviceError, match="scripted failure of unlock"), locked_clocks(clocks, 1500):
        pass
