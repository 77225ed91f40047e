"""What ``auto`` comes to."""

from pathlib import Path

import pytest

from zonemta_py.config.load import parse_config
from zonemta_py.core.errors import ConfigError
from zonemta_py.processes.counts import arrangement, cores

AUTO = "processes: {receivers: auto, senders: auto}"


@pytest.mark.parametrize(
    ("cores_here", "expected"),
    [(1, (0, 0)), (2, (1, 0)), (3, (1, 0)), (4, (1, 1)), (8, (2, 2)), (16, (4, 4)), (128, (4, 4))],
)
def test_auto_goes_by_cores(cores_here: int, expected: tuple[int, int]) -> None:
    assert arrangement(parse_config(AUTO, Path("z.yaml")), cores_here) == expected


def test_a_number_stands() -> None:
    config = parse_config("processes: {receivers: 3, senders: auto}", Path("z.yaml"))
    assert arrangement(config, 8) == (3, 2)
    assert arrangement(parse_config("{}", Path("z.yaml")), 64) == (0, 0)


def test_every_receiver_has_room_for_a_session() -> None:
    few = "listeners: [{address: 127.0.0.1:2525, max_sessions: 2}]\n"
    assert arrangement(parse_config(few + AUTO, Path("z.yaml")), 64) == (2, 4)
    with pytest.raises(ConfigError, match=r"z.yaml:2: processes.receivers: found 3: more than"):
        parse_config(few + "processes: {receivers: 3}", Path("z.yaml"))


def test_neither_a_number_nor_auto() -> None:
    for wrong in ("many", "65", "-1", "1.5", "true"):
        with pytest.raises(ConfigError, match="a number from 0 to 64, or auto"):
            parse_config(f"processes: {{senders: {wrong}}}", Path("z.yaml"))


def test_cores() -> None:
    assert cores() >= 1
