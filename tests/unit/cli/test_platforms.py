"""Where a command cannot work it says what does, in as many lines as the reader can use."""

import pytest

from easyscale.errors import ScriptError, UsageError
from easyscale.runtime.settings import refuse_platform as refuse_platform_of_a_script
from easyscale_cli.main import refuse_platform, run


def test_linux_takes_every_command() -> None:
    for command in ("launch", "status", "doctor"):
        refuse_platform(command, "linux")
    refuse_platform_of_a_script("linux")


def test_on_a_mac_a_script_runs_alone_and_a_job_elsewhere_can_be_asked() -> None:
    refuse_platform("status", "darwin")
    refuse_platform_of_a_script("darwin")
    with pytest.raises(UsageError, match="easyscale launch needs Linux; this is darwin") as met:
        refuse_platform("launch", "darwin")
    assert "python train.py" in met.value.hint


def test_on_windows_wsl_is_named() -> None:
    with pytest.raises(UsageError, match="this is Windows") as met:
        refuse_platform("status", "win32")
    assert "WSL2" in met.value.hint
    with pytest.raises(ScriptError, match="this is Windows"):
        refuse_platform_of_a_script("win32")


def test_what_is_no_terminal_gets_an_error_in_one_line_however_long(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run(["launch", "--logical-workers", "4", "--snapshot-every", "5m", "x.py"]) == 2
    told = capfd.readouterr().err.splitlines()
    assert [row[:6] for row in told] == ["error:", "  try:"]
    assert told[0].endswith("neither a number of steps nor seconds such as 300s")
    assert len(told[0]) > 80
