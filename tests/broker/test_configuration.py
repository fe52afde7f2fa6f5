"""Every number in the configuration has a range, which its defaults are in and which nothing outside it passes."""

from typing import Any

import pytest

from schemas.commands import BrokerConfig
from schemas.effects import Quarantined
from streaming.broker.broker import Broker
from streaming.broker.config import LONGEST, PROFILES, RANGES, BadSetting, ServiceConfiguration, configuration
from streaming.broker.entries import NoEntries
from tests.broker.kit import START, Run

pytestmark = pytest.mark.feature("I1")

NUMBERS = [
    name
    for name in ServiceConfiguration.__struct_fields__
    if type(getattr(ServiceConfiguration(), name)) in (int, float)
]


def test_every_number_has_a_range() -> None:
    assert set(RANGES) == set(NUMBERS)
    for profile in PROFILES:
        defaults = configuration(profile, {})
        assert configuration(profile, {name: getattr(defaults, name) for name in NUMBERS}) == defaults


@pytest.mark.parametrize("name", NUMBERS)
def test_the_range_of_a_setting_is_enforced(name: str) -> None:
    allowed = RANGES[name]
    whole = type(allowed.least) is int
    step = 1 if whole else 0.001
    for value in {allowed.least, allowed.most, allowed.also} - {None}:
        assert getattr(configuration("4.x", {name: value}), name) == value
        assert getattr(configuration("4.x", {name: str(value)}), name) == value
    bad: list[Any] = [allowed.least - step, allowed.most + step, -(10**30), 10**30, "x", [1], "nan", 2**1000]
    for value in bad:
        if value in allowed:
            continue
        with pytest.raises(BadSetting) as error:
            configuration("4.x", {name: value})
        assert name in str(error.value)
        assert str(allowed) in str(error.value)
        assert len(str(error.value)) < 300


def test_the_profile_is_no_setting() -> None:
    with pytest.raises(BadSetting, match="give it separately"):
        configuration("4.0", {"profile": "3.0"})


def test_texts_are_short() -> None:
    for name in (
        "clusterName",
        "entryFilterNames",
        "subscriptionTypesEnabled",
        "brokerEntryMetadataInterceptors",
    ):
        with pytest.raises(BadSetting, match=name):
            configuration("4.x", {name: "," * (LONGEST + 1)})
        assert getattr(configuration("4.x", {name: "," * LONGEST}), name) == "," * LONGEST


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        (
            "subscriptionKeySharedConsistentHashingReplicaPoints",
            10**7,
            "10000000: expected an integer, 1 to 1,000",
        ),
        (
            "messageExpiryCheckIntervalInMinutes",
            1e-5,
            "1e-05: expected a number, 0 or 0.01 to 2,147,483,647 min",
        ),
        ("retentionCheckIntervalInSeconds", 0.001, "0.001: expected an integer, 0 to 2,147,483,647 s"),
    ],
)
def test_the_cause_names_setting_value_and_range(name: str, value: Any, cause: str) -> None:
    run = Run()
    before = run.broker._ctx.config
    (row,) = run.do(BrokerConfig(settings={name: value}), None)
    assert isinstance(row, Quarantined)
    assert (row.rule, row.cause) == ("broker_config", f"broker setting {name}: {cause}")
    assert run.broker._ctx.config == before


def test_a_state_with_a_setting_that_is_out_of_range_now_goes_on() -> None:
    broker = Broker(0, NoEntries())
    broker.tick(START)
    broker._ctx.config = ServiceConfiguration(backlogQuotaCheckIntervalInSeconds=0.5)
    again = Broker.decode(broker.encode(), NoEntries())
    assert again._ctx.config.backlogQuotaCheckIntervalInSeconds == 0.5
