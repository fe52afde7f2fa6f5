"""What clients and tools are told when the broker refuses something: Pulsar's words, as a real 4.0.7 says them."""

from typing import Any

import pytest

from schemas.commands import Admin, GetLastMessageId, KeyValue, SchemaData
from schemas.effects import AdminResponse, Error, ProducerSuccess, SendError, Success
from tests.broker.kit import TOPIC, Run, one
from tests.broker.test_schema_compatibility import B_OPTIONAL, A, avro, record

pytestmark = pytest.mark.feature("E8")


def told(effects: list[Any]) -> tuple[str, str]:
    """The code and the text of an error."""
    error = next(each for each in effects if isinstance(each, Error | SendError))
    return error.error, error.cause


def answered(effects: list[Any]) -> tuple[int, Any]:
    fields = one(effects, AdminResponse).fields
    return fields.status, fields.response


def test_a_producer_whose_name_is_taken() -> None:
    run = Run()
    run.create_producer()
    reason = f"Producer with name 'p' is already connected to topic '{TOPIC}'"
    assert told(run.create_producer(connection="other")) == ("ProducerBusy", reason)


def test_producers_that_are_too_many() -> None:
    run = Run(maxProducersPerTopic=1)
    run.create_producer()
    assert told(run.create_producer("q", 2)) == (
        "ProducerBusy",
        f"Topic '{TOPIC}' reached max producers limit",
    )


@pytest.mark.parametrize(
    ("setting", "subscription", "code", "text"),
    [
        ("maxConsumersPerTopic", "t", "ConsumerBusy", "Topic reached max consumers limit"),
        ("maxConsumersPerSubscription", "s", "ConsumerBusy", "Subscription reached max consumers limit"),
        (
            "maxSubscriptionsPerTopic", "t", "NotAllowedError",
            f"Exceed the maximum number of subscriptions of the topic: {TOPIC}",
        ),
    ],
)  # fmt: skip
def test_consumers_and_subscriptions_that_are_too_many(
    setting: str, subscription: str, code: str, text: str
) -> None:
    settings: dict[str, Any] = {setting: 1}
    run = Run(**settings)
    assert one(run.subscribe("s", "Shared"), Success)
    assert told(run.subscribe(subscription, "Shared", connection="other", id_=2)) == (code, text)


def test_a_type_of_subscription_that_is_off() -> None:
    run = Run()
    run.namespace("POST", "subscriptionTypesEnabled", ["Shared"])
    text = f"Topic[{{{TOPIC}}}] doesn't support Exclusive sub type!"
    assert told(run.subscribe("s")) == ("NotAllowedError", text)


def test_a_subscription_that_use_does_not_create() -> None:
    run = Run(allowAutoSubscriptionCreation=False)
    run.create_producer()
    assert told(run.subscribe("s")) == ("SubscriptionNotFound", "Subscription does not exist")


def test_a_producer_beyond_the_quota() -> None:
    run = Run()
    quota = {"limitSize": 1, "policy": "producer_exception"}
    run.namespace("POST", "backlogQuota", quota)
    run.subscribe("s")
    run.fill(1)
    text = "Cannot create producer on topic with backlog quota exceeded"
    assert told(run.create_producer()) == ("ProducerBlockedQuotaExceededException", text)


def test_a_message_that_is_too_large_for_the_topic() -> None:
    run = Run()
    run.create_producer()
    run.admin("POST", "/maxMessageSize", 10)
    assert told(run.send(0)) == ("NotAllowedError", "Exceed maximum message size")


def test_a_message_that_is_delayed_for_too_long() -> None:
    run = Run()
    run.create_producer()
    run.namespace(
        "POST", "delayedDelivery", {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 5}
    )
    text = "Exceeds max allowed delivery delay of 5 milliseconds"
    assert told(run.send(0, deliver_at_time=run.now + 100)) == ("NotAllowedError", text)


def test_the_last_message_of_a_non_persistent_topic() -> None:
    run, topic = Run(), "non-persistent://public/default/t"
    run.subscribe("s", topic=topic)
    command = GetLastMessageId(connection="s", consumer_id=1, request_id=7)
    assert told(run.do(command, topic)) == ("UnknownError", "Failed to recover Transaction Buffer.")


def test_partitions_that_the_namespace_has_no_room_for() -> None:
    """Those that are asked for count together; the topic that is there does, too."""
    run = Run(maxTopicsPerNamespace=3)
    run.publish(0)

    def create(partitions: int, name: str = "p") -> tuple[int, Any]:
        topic = f"persistent://public/default/{name}"
        return answered(run.admin("PUT", "/partitions", partitions, topic))

    assert create(3) == (412, {"reason": "Exceed maximum number of topics in namespace."})
    assert create(2)[0] == 204
    run.namespace("POST", "maxTopicsPerNamespace", 1)
    assert create(1, "q")[0] == 412
    run.namespace("POST", "maxTopicsPerNamespace", 0)
    assert create(9, "q")[0] == 204


def test_a_producer_without_a_schema_where_one_is_enforced() -> None:
    run = Run(isSchemaValidationEnforced=True)
    assert one(run.create_producer(schema=avro(record(A))), ProducerSuccess)
    text = "Producers cannot connect or send message without a schema to topics with a schemawhen SchemaValidationEnforced is enabled"
    assert told(run.create_producer("q", 2)) == ("IncompatibleSchema", text)


def test_types_of_schemas_have_the_names_of_the_admin_api() -> None:
    run = Run()
    run.create_producer(schema=SchemaData(type="LocalDate"))
    text = "Incompatible schema: exists schema type LOCAL_DATE, new schema type BOOLEAN"
    assert told(run.create_producer("q", 2, schema=SchemaData(type="Bool"))) == ("IncompatibleSchema", text)


def test_nothing_follows_a_schema_in_the_words_of_its_kind() -> None:
    """Under ALWAYS_INCOMPATIBLE."""

    def refusal(first: SchemaData, second: SchemaData) -> str:
        run = Run(schemaCompatibilityStrategy="ALWAYS_INCOMPATIBLE")
        assert one(run.create_producer(schema=first), ProducerSuccess)
        return told(run.subscribe("s", schema=second))[1]

    def of_both(value: str) -> SchemaData:
        types = [KeyValue("key.schema.type", "STRING"), KeyValue("value.schema.type", value)]
        return SchemaData(type="KeyValue", schema_data=bytes(8), properties=types)

    error = "Error during schema compatibility check with strategy ALWAYS_INCOMPATIBLE: unable to read schema"
    assert refusal(avro(record(A)), avro(record(A, B_OPTIONAL))) == error
    assert refusal(of_both("INT32"), of_both("INT64")).startswith(
        "Key schemas or Value schemas are different"
    )
    text = "Schema compatibility strategy is ALWAYS_INCOMPATIBLE"
    assert refusal(SchemaData(type="String"), SchemaData(type="String")) == text


def test_the_admin_api_fails_on_a_schema_that_is_not_compatible() -> None:
    run = Run()
    run.create_producer(schema=SchemaData(type="String"))
    body: Any = {"type": "INT32", "schema": "", "properties": {}}
    reason = "Incompatible schema: exists schema type STRING, new schema type INT32"
    path = "/schemas/public/default/t/compatibility"
    assert answered(run.do(Admin(method="POST", path=path, body=body))) == (500, {"reason": reason})
