"""What the official Java client sees of a server, beside what it saw of a real broker (`tests/beside/checks.py`)."""

from pathlib import Path

import pytest

from streaming.runtime.jars import JarsUnavailableError
from tests.beside.checks import SETTINGS, compiled, differences, judged, parsed, recorded, seen
from tests.beside.sides import magnetar
from tests.server.conftest import PROFILE

pytestmark = [pytest.mark.feature("A1", "E8", "K1", "K2")]


def test_lines_are_taken_apart() -> None:
    line = 'check a/b: one=1; two=X: {"errorMsg":"no; x"}; one=[2; 3]\nother\n'
    assert parsed(line) == {"a/b": {"one": "1", "two": 'X: {"errorMsg":"no; x"}', "one 2": "[2; 3]"}}


def test_differences_are_told_and_those_that_are_gone() -> None:
    there, here = parsed("check a: x=1; y=2\ncheck b: x=3"), parsed("check a: x=1; y=4")
    found = differences(there, here)
    assert found == {"a y": ("2", "4"), "b x": ("3", "nothing")}
    wrong, counts = judged(found)
    assert wrong[0] == "a y\n  Pulsar:   2\n  Magnetar: 4"
    assert any("no difference any more" in each for each in wrong)
    assert not counts


def test_some_differences_are_of_other_releases() -> None:
    found = {"subscribe/other-type Exclusive-Shared": ("shorter", "longer")}
    wrong, counts = judged(found, "3.0.7")
    assert sum(counts.values()) == 1
    assert not any("seek/shared" in each for each in wrong)  # a race, which may be gone
    assert judged(found)[0][0].startswith("subscribe/other-type Exclusive-Shared")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_java_client_sees_what_it_saw_of_a_real_broker(tmp_path: Path) -> None:
    if PROFILE != "4.x":
        pytest.skip("recorded with 4.0.7 alone")
    try:
        classes = tmp_path / "classes"
        classes.mkdir()
        program = compiled(classes)
    except JarsUnavailableError as error:
        pytest.skip(str(error))
    there = parsed(recorded().read_text())
    assert len(there) > 370
    with magnetar(tmp_path, SETTINGS) as address:
        here = seen(program, f"http://{address.admin}", f"pulsar://{address.service}")
    wrong, _ = judged(differences(there, here))
    assert not wrong, "\n".join(wrong[:20])
