"""What operators do to a topic: unloads, restarts, subscriptions, cursors, expiry, policies and the checks that apply them."""

import random
import time
from collections.abc import Callable
from typing import Any

from tests.parity.consumers import Message
from tests.parity.recorder import Recorder

_LIMITS = ("maxUnackedMessagesPerConsumer", "maxUnackedMessagesPerSubscription", "maxProducersPerTopic",
           "maxConsumersPerTopic", "maxConsumersPerSubscription", "maxSubscriptionsPerTopic")  # fmt: skip
_OF_TOPICS = {"maxUnackedMessagesPerConsumer": "maxUnackedMessagesOnConsumer", "maxProducersPerTopic": "maxProducers",
              "maxUnackedMessagesPerSubscription": "maxUnackedMessagesOnSubscription",
              "maxConsumersPerTopic": "maxConsumers"}  # fmt: skip
"""The names of limits as policies of a topic, where they have another."""

_EARLIEST = {"ledgerId": -1, "entryId": -1}

_APPLIED = 0.4
"""Seconds until a policy holds: the broker hears of it by a notification, for a topic by a message of its system topic."""


class Administrator:
    """Each operation of a plan is a method, which returns whether there was anything to do.

    `subscriptions`: their names. `delivered`: every message so far, filled by the consumers. `restart` restarts the broker. `reopen` brings back the clients that reconnect by themselves.
    """

    def __init__(
        self, recorder: Recorder, subscriptions: list[str], delivered: list[Message],
        restart: Callable[[], None], reopen: Callable[[], None],
    ) -> None:  # fmt: skip
        self._recorder, self._subscriptions, self._delivered = recorder, subscriptions, delivered
        self._restart, self._reopen = restart, reopen

    def unload(self, dice: random.Random) -> bool:
        self._recorder.call("PUT", f"{self._topic(dice)}/unload")
        self._reopen()
        return True

    def restart(self, dice: random.Random) -> bool:
        self._restart()
        self._reopen()
        return True

    def terminate(self, dice: random.Random) -> bool:
        self._recorder.call("POST", f"{self._topic(dice)}/terminate")
        return True

    def wait(self, dice: random.Random) -> bool:
        self._recorder.wait(dice.choice([1.2, 2.5, 4.5]))
        return True

    # -- subscriptions ----------------------------------------------------------------------------------------------

    def create_subscription(self, dice: random.Random) -> bool:
        topic = self._topic(dice)
        body = dice.choice([None, _EARLIEST, self._position(dice, topic)])
        self._recorder.call("PUT", self._subscription(dice, topic), body)
        return True

    def delete_subscription(self, dice: random.Random) -> bool:
        path = self._subscription(dice, self._topic(dice))
        self._recorder.call("DELETE", f"{path}{dice.choice(['', '?force=true'])}")
        return True

    def skip(self, dice: random.Random) -> bool:
        self._recorder.call(
            "POST", f"{self._subscription(dice, self._topic(dice))}/skip/{dice.choice([1, 2, 3, 6, 50])}"
        )
        return True

    def skip_all(self, dice: random.Random) -> bool:
        self._recorder.call("POST", f"{self._subscription(dice, self._topic(dice))}/skip_all")
        return True

    def reset(self, dice: random.Random) -> bool:
        topic = self._topic(dice)
        position = self._position(dice, topic) or _EARLIEST
        self._recorder.call("POST", f"{self._subscription(dice, topic)}/resetcursor", position)
        return True

    def reset_to_time(self, dice: random.Random) -> bool:
        then = int((time.time() - dice.choice([0, 2, 10, 60, 10000])) * 1000)
        path = self._subscription(dice, self._topic(dice))
        self._recorder.call("POST", f"{path}/resetcursor/{then}")
        return True

    def expire(self, dice: random.Random) -> bool:
        """Expire what is older than some seconds, of one subscription or of all."""
        topic = self._topic(dice)
        of = self._subscription(dice, topic) if dice.random() < 0.8 else f"{topic}/all_subscription"
        self._recorder.call("POST", f"{of}/expireMessages/{dice.choice([1, 3, 10, 35, 75, 1000])}")
        return True

    def expire_to(self, dice: random.Random) -> bool:
        topic = self._topic(dice)
        if (position := self._position(dice, topic)) is None:
            return False
        self._recorder.call("POST", f"{self._subscription(dice, topic)}/expireMessages", position)
        return True

    # -- policies ---------------------------------------------------------------------------------------------------

    def set_ttl(self, dice: random.Random) -> bool:
        """Of the namespace or of the topic. A change also runs the check."""
        seconds = dice.choice([0, 35, 75, 1000])  # far from the ages of messages, as it holds only later
        if dice.random() < 0.6:
            self._call("POST", f"{self._namespace}/messageTTL", seconds)
        else:
            self._call("POST", f"{self._recorder.path}/messageTTL?messageTTL={seconds}")
        return True

    def remove_ttl(self, dice: random.Random) -> bool:
        self._call("DELETE", f"{dice.choice([self._namespace, self._recorder.path])}/messageTTL")
        return True

    def set_quota(self, dice: random.Random) -> bool:
        """A backlog quota by size or by age, of the namespace or of the topic."""
        kind = dice.choice(["destination_storage", "destination_storage", "message_age"])
        policy = dice.choice(["producer_request_hold", "producer_exception", "consumer_backlog_eviction",
                              "consumer_backlog_eviction"])  # fmt: skip
        body = {"limitSize": dice.choice([100, 300, 600, 2000]), "limitTime": dice.choice([2, 5, 40]),
                "policy": policy}  # fmt: skip
        body |= {"limitTime": -1} if kind == "destination_storage" else {"limitSize": -1}
        of = dice.choice([self._namespace, self._namespace, self._recorder.path])
        self._call("POST", f"{of}/backlogQuota?backlogQuotaType={kind}", body)
        return True

    def remove_quota(self, dice: random.Random) -> bool:
        kind = dice.choice(["destination_storage", "message_age"])
        of = dice.choice([self._namespace, self._recorder.path])
        self._call("DELETE", f"{of}/backlogQuota?backlogQuotaType={kind}")
        return True

    def check_quota(self, dice: random.Random) -> bool:
        self._recorder.check_backlog_quotas()
        return True

    def set_retention(self, dice: random.Random) -> bool:
        minutes, megabytes = dice.choice([(0, 0), (-1, -1), (10, 1), (-1, 1), (1, -1), (1, 1)])
        body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        self._call("POST", f"{dice.choice([self._namespace, self._recorder.path])}/retention", body)
        return True

    def remove_retention(self, dice: random.Random) -> bool:
        self._call("DELETE", f"{dice.choice([self._namespace, self._recorder.path])}/retention")
        return True

    def trim(self, dice: random.Random) -> bool:
        self._recorder.call("POST", f"{self._topic(dice)}/trim")
        return True

    def set_limit(self, dice: random.Random) -> bool:
        limit, most = dice.choice(_LIMITS), dice.choice([0, 1, 2, 3, 5])
        if dice.random() < 0.6:
            self._call("POST", f"{self._namespace}/{limit}", most)
        else:
            self._call("POST", f"{self._recorder.path}/{_OF_TOPICS.get(limit, limit)}", most)
        return True

    def remove_limit(self, dice: random.Random) -> bool:
        limit = dice.choice(_LIMITS)
        if dice.random() < 0.6:
            self._call("DELETE", f"{self._namespace}/{limit}")
        else:
            self._call("DELETE", f"{self._recorder.path}/{_OF_TOPICS.get(limit, limit)}")
        return True

    def look(self, dice: random.Random) -> bool:
        """Ask for a policy of the namespace or of the topic, or for what is in force."""
        name = dice.choice(["messageTTL", "retention", "backlogQuotaMap", *_LIMITS])
        if dice.random() < 0.4:
            self._recorder.call("GET", f"{self._namespace}/{name}")
        else:
            applied = dice.choice(["", "?applied=true", "?applied=true", "?applied=false"])
            self._recorder.call("GET", f"{self._recorder.path}/{_OF_TOPICS.get(name, name)}{applied}")
        return True

    # -- rates ------------------------------------------------------------------------------------------------------

    def set_dispatch_rate(self, dice: random.Random) -> bool:
        """Of the namespace, the topic or a subscription, in messages or bytes. The longest period does not end."""
        messages, size = dice.choice([(1, -1), (2, -1), (5, -1), (-1, 100), (-1, 400), (3, 200), (0, 0)])
        body = {"dispatchThrottlingRateInMsg": messages, "dispatchThrottlingRateInByte": size,
                "ratePeriodInSecond": dice.choice([2, 4, 1000, 1000]), "relativeToPublishRate": False}  # fmt: skip
        self._call("POST", self._dispatch_rate(dice), body)
        return True

    def remove_dispatch_rate(self, dice: random.Random) -> bool:
        self._call("DELETE", self._dispatch_rate(dice))
        return True

    def _dispatch_rate(self, dice: random.Random) -> str:
        name = dice.choice(["dispatchRate", "subscriptionDispatchRate", "subscriptionDispatchRate"])
        if self._rated == self._recorder.path and dice.random() < 0.3:
            name = f"{dice.choice(self._subscriptions)}/dispatchRate"
        return f"{self._rated}/{name}"

    @property
    def _rated(self) -> str:
        """What has rates in this scenario, by its seed: the namespace or the topic. Never both, because a rate of the namespace
        also delays the system topic from which the broker learns the policies of topics."""
        return self._namespace if self._recorder.name[-1] in "02468" else self._recorder.path

    def set_publish_rate(self, dice: random.Random) -> bool:
        """So that a message that exceeds it waits for less than a recorder does."""
        messages, size = dice.choice([(3, -1), (-1, 150), (5, 300), (-1, -1)])
        body = {"publishThrottlingRateInMsg": messages, "publishThrottlingRateInByte": size}
        self._call("POST", f"{self._rated}/publishRate", body)
        return True

    def set_subscribe_rate(self, dice: random.Random) -> bool:
        body = {"subscribeThrottlingRatePerConsumer": dice.choice([1, 2, 3, -1]),
                "ratePeriodInSecond": dice.choice([5, 1000, 1000])}  # fmt: skip
        self._call("POST", f"{self._rated}/subscribeRate", body)
        return True

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def _namespace(self) -> str:
        return f"/namespaces/{self._recorder.namespace}"

    def _call(self, method: str, path: str, body: Any = None) -> None:
        self._recorder.call(method, path, body, seconds=_APPLIED)

    def _topic(self, dice: random.Random) -> str:
        """The path of a topic or partition."""
        return "/" + dice.choice(self._recorder.topics).replace("://", "/")

    def _subscription(self, dice: random.Random, topic: str) -> str:
        return f"{topic}/subscription/{dice.choice(self._subscriptions)}"

    def _position(self, dice: random.Random, topic: str) -> dict[str, int] | None:
        """A message of the topic that was delivered, or None."""
        known = [each for each in self._delivered if "/" + each.topic.replace("://", "/") == topic]
        if not known:
            return None
        message = dice.choice(known)
        return {"ledgerId": message.ledger, "entryId": message.entry}
