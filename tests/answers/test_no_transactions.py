"""What can't judge logs with transactions says so in one line; a replay takes them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.cli.app import app
from streaming.jobs.replay import replay_in_process

EXAMPLE = Path(__file__).parents[2] / "docs" / "example-transactions.jsonl"


def refused(*arguments: object) -> str:
    ran = CliRunner().invoke(app, [str(each) for each in arguments])
    assert ran.exit_code != 0
    (line,) = ran.stderr.strip().splitlines()
    return line


@pytest.mark.feature("L1")
def test_what_if_and_advise_refuse_a_log_with_transactions(tmp_path: Path) -> None:
    shorter = tmp_path / "shorter.yaml"
    shorter.write_text("broker:\n  ttlDurationDefaultInSeconds: 60\n")
    said = refused("whatif", EXAMPLE, "--policies", shorter, "--out", tmp_path / "out", "--processes", 1)
    assert (
        "transactionCoordinatorEnabled: what-if, advise and canaries can't judge a log with transactions"
        in said
    )


@pytest.mark.feature("L1")
def test_a_scenario_has_no_transactions(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "settings: {transactionCoordinatorEnabled: true}\n"
        "clients:\n  a:\n    - {command: PRODUCER, producer_id: 1, request_id: 1, producer_name: p}\n"
    )
    assert "transactionCoordinatorEnabled: a scenario has no transactions" in refused("check", scenario)


@pytest.mark.feature("L1", "L2")
def test_a_replay_takes_one_ingress_partition_unless_it_is_told_others(tmp_path: Path) -> None:
    one = replay_in_process(EXAMPLE, tmp_path / "one")
    assert (one.partitions, one.rows["NEW_TXN_RESPONSE"], one.rows["SEND_RECEIPT"]) == (1, 2, 2)
    three = replay_in_process(EXAMPLE, tmp_path / "three", partitions=3)
    assert (three.partitions, three.rows["NEW_TXN_RESPONSE"], three.rows["SEND_RECEIPT"]) == (3, 6, 2)
    assert [{**row, "partition": 0} for row in three.stats] == one.stats


@pytest.mark.feature("L1")
def test_a_setting_that_is_off_needs_no_single_partition(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    settings = {"transactionCoordinatorEnabled": "false"}
    log.write_text(json.dumps({"timestamp": 1, "command": "BROKER_CONFIG", "settings": settings}) + "\n")
    assert replay_in_process(log, tmp_path / "out", partitions=2).partitions == 2
