"""What `Broker.peek` shows of a subscription is there to be read."""

from tests.broker.kit import START, TOPIC, Run


def test_a_delayed_message_that_was_skipped_waits_no_more() -> None:
    run = Run()
    run.subscribe("s", "Shared", permits=10)

    def shown() -> list[str]:
        return [each.position for each in run.broker.peek(TOPIC, "s", "delayed", 10)]

    for sequence_id in range(2):
        run.publish(sequence_id, deliver_at_time=START + 100_000)
    assert shown() == ["1:0", "1:1"]
    run.admin("POST", "/subscription/s/skip/1")
    assert run.mark_delete("s") == (1, 0)
    assert shown() == ["1:1"]
