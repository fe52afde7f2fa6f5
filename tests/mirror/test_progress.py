"""How far a mirror has come, as its log tells."""

from streaming.mirror.journal import MirrorRecord
from streaming.mirror.progress import MirrorProgress, TopicProgress, WholeChange

BASE, PARTITION = "persistent://a/b/t", "persistent://a/b/t-partition-1"


def calls(changes: list[WholeChange]) -> list[tuple[str, str]]:
    return [(each.command["method"], each.command["path"]) for each in changes]


def test_a_partition_that_was_deleted_is_created_by_itself() -> None:
    """Its partitioned topic, which the cluster has again with as many partitions before the mirror lists them, does not create it."""
    progress = MirrorProgress([], sampled=True)
    written = [*progress.set_partitions(BASE, 2)]
    progress.topics[PARTITION] = TopicProgress(PARTITION)
    first = [*progress.create(PARTITION)]
    assert calls(first) == [("PUT", "/persistent/a/b/t-partition-1/properties")]
    written += [*first, progress.delete(PARTITION)]
    log = [MirrorRecord(1, each.topic, {"command": "ADMIN", **each.command}) for each in written]
    for goes_on in (progress, MirrorProgress(log, sampled=True)):
        goes_on.topics[PARTITION] = TopicProgress(PARTITION)
        again = [*goes_on.create(PARTITION)]
        assert calls(again) == [
            ("PUT", "/persistent/a/b/t-partition-1"),
            ("PUT", "/persistent/a/b/t-partition-1/properties"),
        ]
        assert [*goes_on.create(PARTITION)] == []


def test_a_partitioned_topic_that_is_created_again_creates_its_partitions() -> None:
    progress = MirrorProgress([], sampled=True)
    for _ in range(2):
        assert calls([*progress.set_partitions(BASE, 2)]) == [("PUT", "/persistent/a/b/t/partitions")]
        progress.topics[PARTITION] = TopicProgress(PARTITION)
        assert calls([*progress.create(PARTITION)]) == [("PUT", "/persistent/a/b/t-partition-1/properties")]
        progress.delete(PARTITION)
        progress.delete_partitioned(BASE)
