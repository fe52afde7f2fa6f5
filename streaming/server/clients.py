"""What a server knows of its producers and consumers that is no state of the broker: it shows in the stats of topics."""

from collections import defaultdict
from typing import Any

from schemas.effects import ProducerSuccess
from schemas.units import moment
from streaming.protocol.frames import unsigned

Json = dict[str, Any]


class Clients:
    """The producers and consumers of a server's connections."""

    def __init__(self) -> None:
        self._of: defaultdict[str, dict[tuple[str, int], Json]] = defaultdict(dict)
        self._on: defaultdict[str, dict[tuple[str, str, int], Json]] = defaultdict(dict)
        """By topic, and by connection, kind and id: in the order in which they came."""

    def opened(self, connection: str, client: Json, topic: str, command: Json) -> None:
        """A connection asks for a producer or a consumer. `client`: what the stats show of the connection."""
        of_producer = command["command"] == "PRODUCER"
        kind, id_ = (
            "producer" if of_producer else "consumer",
            command["producer_id" if of_producer else "consumer_id"],
        )
        self.closed(connection, kind, id_)
        self._of[connection][kind, id_] = self._on[topic][connection, kind, id_] = {
            "topic": topic,
            "subscription": command.get("subscription"),
            "name": command.get("producer_name" if of_producer else "consumer_name"),
            "shown": {
                **client,
                "metadata": {pair["key"]: pair["value"] for pair in command.get("metadata", ())},
                **({"producerId": id_} if of_producer else {}),
            },
        }

    def named(self, effect: ProducerSuccess) -> None:
        """The broker named a producer."""
        found = self._of.get(effect.connection, {}).get(("producer", effect.producer_id))
        if found is not None:
            found["name"] = effect.producer_name

    def consumer_stats(self, connection: str, consumer_id: int, stats: Json) -> Json | None:
        """The fields of CONSUMER_STATS_RESPONSE from the stats of a consumer's topic; None: the topic does not have it."""
        found = self._of.get(connection, {}).get(("consumer", consumer_id))
        if found is None:
            return None
        subscription = stats.get("subscriptions", {}).get(found["subscription"], {"consumers": []})
        # both in the order in which they came, which tells apart those without a name
        namesakes = [
            each
            for (_, kind, _), each in self._on[found["topic"]].items()
            if kind == "consumer" and all(each[key] == found[key] for key in ("subscription", "name"))
        ]
        rows = [each for each in subscription["consumers"] if each["consumerName"] == (found["name"] or "")]
        place = next(place for place, each in enumerate(namesakes) if each is found)
        if place >= len(rows):
            return None
        row = rows[place]
        rates = ("msgRateOut", "msgThroughputOut", "msgRateRedeliver", "messageAckRate")
        counts = ("availablePermits", "unackedMessages", "blockedConsumerOnUnackedMsgs", "consumerName")
        return {
            **{name: row.get(name, 0.0) for name in rates},
            **{name: row[name] for name in counts},
            **{name: found["shown"][name] for name in ("address", "connectedSince")},
            "availablePermits": unsigned(row["availablePermits"]),
            "type": subscription["type"],
            "msgRateExpired": subscription.get("msgRateExpired", 0.0),
            "msgBacklog": subscription["msgBacklog"],
        }

    def closed(self, connection: str, kind: str, id_: int) -> None:
        """A producer or consumer is closed."""
        if (found := self._of.get(connection, {}).pop((kind, id_), None)) is not None:
            topic = found["topic"]
            del self._on[topic][connection, kind, id_]
            if not self._on[topic]:
                del self._on[topic]

    def lost(self, connection: str) -> None:
        """A connection is closed, with all that it has."""
        for kind, id_ in list(self._of.get(connection, ())):
            self.closed(connection, kind, id_)
        self._of.pop(connection, None)

    def names(self, connection: str) -> list[str]:
        """The producers and consumers of a connection."""
        return [
            f"producer {each['name'] or id_} of {each['topic']}" if kind == "producer"
            else f"consumer {each['name'] or id_} of subscription {each['subscription']} of {each['topic']}"
            for (kind, id_), each in self._of.get(connection, {}).items()
        ]  # fmt: skip

    @property
    def connections(self) -> int:
        """The number of connections that have opened a producer or consumer."""
        return len(self._of)

    def __len__(self) -> int:
        """The producers and consumers that are known."""
        return sum(map(len, self._of.values()))

    def describe(self, topic: str, stats: Json) -> Json:
        """The stats of a topic with what is known of its producers and consumers."""
        known = {
            (kind, found["subscription"], found["name"]): found["shown"]
            for (_, kind, _), found in self._on.get(topic, {}).items()
        }
        publishers = [
            each | known.get(("producer", None, each["producerName"]), {}) for each in stats["publishers"]
        ]
        subscriptions = {
            name: each
            | {
                "consumers": [
                    one | known.get(("consumer", name, one["consumerName"]), {}) for one in each["consumers"]
                ]
            }
            for name, each in stats["subscriptions"].items()
        }
        return stats | {"publishers": publishers, "subscriptions": subscriptions}


def connection(address: Any, client_version: str, now: int) -> Json:
    """What the stats show of a connection that came at `now` (ms)."""
    since = moment(now).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    shown = f"/{address[0]}:{address[1]}" if address else ""
    # quirk: Pulsar keeps the version as an HTTP agent, whose parts have no blanks
    return {"address": shown, "connectedSince": since, "clientVersion": client_version.replace(" ", "-")}
