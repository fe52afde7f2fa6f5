"""What operators and tests say: admin calls, the configuration, time, checks and faults."""

from typing import Annotated, Literal

from msgspec import Meta, field

from schemas.commands.client import Command

_Scalar = bool | int | float | str | None
_Depth1 = _Scalar | list[_Scalar] | dict[str, _Scalar]
_Depth2 = _Scalar | list[_Depth1] | dict[str, _Depth1]
_Depth3 = _Scalar | list[_Depth2] | dict[str, _Depth2]
_Depth4 = _Scalar | list[_Depth3] | dict[str, _Depth3]
JsonBody = _Scalar | list[_Depth4] | dict[str, _Depth4]
"""JSON with arrays and objects nested at most five deep. The deepest body in Pulsar's API, that of a namespace's creation,
has four levels. The type bounds the recursion of decoders and encoders."""


class Admin(Command, tag="ADMIN"):
    """A call of Pulsar's admin REST API: set a policy, create a subscription, skip, reset, expire, unload, trim, …

    The answer is ADMIN_RESPONSE. A call on a topic is a record of that topic. A call on a namespace or on the broker has
    no topic; in Kafka, write it to every ingress partition.
    """

    method: Literal["GET", "PUT", "POST", "DELETE"]
    """The HTTP method."""
    path: str
    """The path below ``/admin/v2``, with the query string, if there is one."""
    body: JsonBody = None
    """The request's body, as JSON. Arrays and objects nest at most five deep."""
    lasting: bool = False
    """True: the policy that the call sets on its topic or namespace holds whenever that exists. The call does not create it, and neither
    its end nor a call that sets or removes all its policies removes this one. Pulsar has no such calls: policies are tried with them."""


Profile = Literal["2.10", "2.x", "3.0", "4.0", "4.2", "4.x", "5.0"]
"""The versions of Pulsar that Magnetar knows."""


class BrokerConfig(Command, tag="BROKER_CONFIG"):
    """Configure the broker: usually the first record of each ingress partition. It has no answer.

    It replaces the configuration before it as a whole, but for the settings that ADMIN POST /brokers/configuration changed: as in Pulsar,
    these outlive the broker. One that names an unknown setting or a bad value is quarantined,
    and the configuration stays. Without any, profile 4.x applies.
    """

    profile: Profile = "4.x"
    """The Pulsar version whose defaults and whose behaviour apply, see [profiles.md](profiles.md)."""
    settings: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    """Settings that differ from the profile's defaults, by Pulsar's names, see [settings.md](settings.md). Values may be
    text, as in ``broker.conf``."""


class Tick(Command, tag="TICK"):
    """Advance the partition's clock to the record's timestamp, and do nothing else. It has no answer."""


class RunCheck(Command, tag="RUN_CHECK"):
    """Run a periodic check of the ingress partition now, whatever its interval. It has no answer.

    With the check's interval set to 0, which turns it off, the log alone decides when it runs.
    """

    check: Literal["backlogQuota", "messageExpiry", "consumedLedgers", "deduplicationSnapshot", "inactiveProducers",
                   "inactiveSubscriptions", "inactiveTopics", "cursorFlush", "compaction"]  # fmt: skip
    """The check. backlogQuota enforces backlog quotas, messageExpiry TTL, consumedLedgers rolls over idle ledgers and
    trims, deduplicationSnapshot stores sequence ids, inactiveProducers forgets them, inactiveSubscriptions deletes unused
    subscriptions, inactiveTopics unused topics, cursorFlush writes positions that the mark-delete rate limit held back, compaction
    compacts topics with more bytes than their compactionThreshold."""


class Restart(Command, tag="RESTART"):
    """Stop the broker of the ingress partition cleanly, and start it on the same data. It has no answer.

    Topics are closed as by an unload, then all connections are closed. Non-persistent topics are gone. A persistent topic is
    loaded when something uses it: until then no periodic check runs on it, and what its ledgers hold does not expire.
    """


class Fault(Command, tag="FAULT"):
    """A fault in the topic's storage. It has no answer.

    Faults open the gap between a message that is accepted and one that is stored, in which clients see SEND_ERROR,
    fencing and roll-back.

    * ``FailWrites``: the next `count` writes fail. The topic is fenced, and its producers are closed.
    * ``DelayWrites``: the next `count` writes stay unconfirmed until ``CompleteWrites`` or ``LoseWrites``.
    * ``CompleteWrites``: the `count` oldest unconfirmed writes succeed; 0 means all.
    * ``LoseWrites``: all unconfirmed writes fail.

    A non-persistent topic has no writes that could fail: ``FailWrites`` gives an UNSUPPORTED row there, the others act on
    messages in flight.
    """

    fault: Literal["FailWrites", "DelayWrites", "CompleteWrites", "LoseWrites"]
    """What happens."""
    count: Annotated[int, Meta(ge=0, le=2**31 - 1, extra={"unit": "writes"})] = 0
    """How many writes it concerns."""
