"""What is said on WebSockets, to a real Pulsar and to Magnetar, and what comes back without ids, times and addresses.

Each conversation is a function that talks through a `Talk`, which writes down all that it hears.
"""

import base64
import json
import random
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pulsar
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from streaming.protocol.codec import decode_message_id
from tests.authorization.questions import NOBODY, SUPERUSER, token

ANSWER_SECONDS = 20.0
"""An answer that takes longer is none."""

QUIET_SECONDS = 0.4

_EARLIEST = "subscriptionInitialPosition=Earliest"
_MESSAGE = re.compile(r"<tr><th>MESSAGE:</th><td>(.*?)</td></tr>", re.DOTALL)
_TOLD = re.compile(r"\{(?:&quot;|\")errorMsg.*?\}")
"""The broker's words, which are compared elsewhere, and what Pulsar's client adds to them."""
_TOO_LARGE = re.compile(r"closed 1009 .*")


class Talk:
    """A conversation with the broker at `address` (host and port of its web service). `heard`: what came back, in its order.

    `old`: before 4.0, a consumer can't say that its subscription begins at the earliest message, so that is created before.
    """

    def __init__(self, address: str, name: str, token: str | None = None, *, old: bool = False) -> None:
        self.address, self.token, self._old = address, token, old
        self.topic = f"persistent/public/default/{name}"
        self.heard: list[Any] = []
        self._sockets: dict[str, ClientConnection] = {}
        self.ids: dict[str, str] = {}
        """The id of each message, by its payload."""

    def open(self, name: str, path: str, **headers: str) -> None:
        """Open a WebSocket. `path`: without ``/ws/``; ``{t}`` is the topic of the conversation."""
        if self._old and _EARLIEST in path:
            _, of, *topic, subscription = path.replace("{t}", self.topic).partition("?")[0].split("/")
            assert of == "consumer"
            self.call("PUT", f"{'/'.join(topic)}/subscription/{subscription}", '{"ledgerId":-1,"entryId":-1}')
        url = f"ws://{self.address}/ws/{path.replace('{t}', self.topic)}"
        token = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        try:
            self._sockets[name] = connect(
                url, open_timeout=60, legacy=True, max_size=None, additional_headers={**token, **headers}
            )
        except InvalidStatus as refused:
            found = _MESSAGE.search((refused.response.body or b"").decode())
            text = _TOLD.sub("{…}", found[1]) if found else ""
            self._note(name, f"{refused.response.status_code} {text}".strip())
        else:
            self._note(name, "open")

    def say(self, name: str, *messages: Any) -> None:
        """Send messages: text as it is, bytes as a binary message, all else as JSON. That it is closed by then, or was refused, `hear` notes."""
        with suppress(ConnectionClosed, KeyError):
            for each in messages:
                self._sockets[name].send(each if isinstance(each, str | bytes) else json.dumps(each))

    def hear(self, name: str, messages: int = 1, *, sort: bool = False) -> list[Any]:
        """Wait for messages, but not again as long once one has not come. `sort`: their order is chance."""
        came: list[Any] = []
        for _ in range(messages):
            came.append(self._hear(name, QUIET_SECONDS if came[-1:] == ["nothing"] else ANSWER_SECONDS))
        shown = [self._shown(each) for each in came]
        for each in sorted(shown, key=str) if sort else shown:
            self._note(name, each)
        return came

    def hear_large(self, name: str, messages: int) -> list[str]:
        """Wait for messages, of whose payloads the size is shown. Returns their ids."""
        ids = []
        for _ in range(messages):
            found = self._hear(name)
            if not isinstance(found, dict):
                self._note(name, found)
                continue
            ids.append(found["messageId"])
            self._note(name, self._shown(found | {"payload": len(base64.b64decode(found["payload"]))}))
        return ids

    def ask(self, name: str, message: Any) -> Any:
        """Send a message, and wait for another."""
        self.say(name, message)
        return self.hear(name)[0]

    def quiet(self, name: str, seconds: float = QUIET_SECONDS) -> None:
        """Nothing comes."""
        try:
            self._note(name, self._shown(json.loads(self._sockets[name].recv(timeout=seconds))))
        except TimeoutError:
            self._note(name, "nothing")

    def _hear(self, name: str, seconds: float = ANSWER_SECONDS) -> Any:
        if name not in self._sockets:
            return "not open"
        try:
            found = json.loads(self._sockets[name].recv(timeout=seconds))
        except TimeoutError:
            return "nothing"
        except ConnectionClosed as closed:
            text = "cut off" if closed.rcvd is None else f"closed {closed.rcvd.code} {closed.rcvd.reason}"
            return _TOO_LARGE.sub("closed 1009", text)
        if "payload" in found:
            self.ids[base64.b64decode(found["payload"]).decode()] = found["messageId"]
        return found

    def close(self, *names: str) -> None:
        """Close WebSockets, and wait until they are."""
        for name in names:
            if name in self._sockets:
                self._sockets.pop(name).close()

    def close_all(self) -> None:
        """Close what is open."""
        self.close(*self._sockets)

    def call(self, method: str, path: str, body: str = "") -> Any:
        """A call of the admin API; ``{t}`` is the topic of the conversation. Returns the answer's JSON."""
        url = f"http://{self.address}/admin/v2/{path.replace('{t}', self.topic)}"
        request = urllib.request.Request(url, body.encode() or None, method=method)
        request.add_header("Content-Type", "application/json")
        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                self._note("admin", refused.status)
                return None
        return json.loads(text) if text else None

    def note(self, what: Any) -> None:
        """Write something down."""
        self._note("note", what)

    def backlog(self, subscription: str) -> None:
        """Write down how many messages a subscription has to deliver, as soon as that stays the same."""
        before = None
        while True:
            stats = self.call("GET", "{t}/stats")["subscriptions"].get(subscription)
            found = None if stats is None else stats["msgBacklog"]
            if found == before:
                break
            before = found
            self.quiet_time()
        self._note("backlog", found)

    def quiet_time(self) -> None:
        """A moment, for what a client sends later: Pulsar's groups acknowledgements for 100 ms."""
        try:
            next(iter(self._sockets.values())).recv(timeout=0.3)
        except (TimeoutError, ConnectionClosed, StopIteration):
            return
        self._note("note", "something came")

    def _note(self, name: str, what: Any) -> None:
        self.heard.append([name, what])

    def _shown(self, found: Any) -> Any:
        """A message without what differs from one broker to the next."""
        if not isinstance(found, dict):
            return found
        shown = dict(found)
        if "messageId" in shown:
            shown["messageId"] = self._id(shown["messageId"])
        if "publishTime" in shown:
            assert re.fullmatch(r"[\d-]+T[\d:.]+Z", shown["publishTime"])
            del shown["publishTime"]
        for name in ("ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME"):
            if name in shown.get("properties", {}):
                shown["properties"] = {**shown["properties"], name: "…"}
        if shown.get("result") == "send-error:3":  # the words of a parser
            shown["errorMsg"] = "…"
        elif "errorMsg" in shown:
            shown["errorMsg"] = _TOLD.sub("{…}", shown["errorMsg"])
        return shown

    def _id(self, text: str) -> str:
        return _shown_id(decode_message_id(base64.b64decode(text))[0])


def _shown_id(fields: dict[str, Any]) -> str:
    """A message id without its ledger. −1: a field that is not there."""
    names = ("entryId", "partition", "batch_index", "batch_size")
    entry, partition, index, size = (fields.get(name, -1) for name in names)
    first = fields.get("first_chunk_message_id")
    return f"{entry}:{partition}:{index} of {size}{'' if first is None else f' from {_shown_id(first)}'}"


def b64(text: str) -> str:
    """A payload."""
    return base64.b64encode(text.encode()).decode()


def _texts(texts: str, **more: Any) -> list[Any]:
    return [{"payload": b64(each), **more} for each in texts]


def producing(talk: Talk) -> None:
    """What a message may be."""
    path, stored = "v2/producer/{t}?producerName=p", 0
    talk.open("p", path)
    for each in (
        {"payload": b64("a")},
        {"payload": b64("b"), "context": "c1", "key": "k", "properties": {"a": "1"}, "eventTime": "2020-01-02T03:04:05.678Z"},
        {"payload": b64("c"), "key": 5, "properties": {"a": 1, "c": True, "d": 1.5}, "context": 5},
        {"payload": b64("d"), "nonsense": 1, "context": "y"},
        {"payload": b64("e"), "sequenceId": 77, "replicationClusters": ["standalone"]},
        {"payload": b64("f"), "replicationClusters": []},
        {"payload": b64("g"), "disableReplication": True, "schemaVersion": 3},
        {"payload": b64("h"), "key": ""},
        {"payload": b64("i"), "key": None, "context": None, "properties": None},
        {"payload": b64("j"), "eventTime": "2020-01-02T03:04:05+02:00"},
        {"payload": b64("k"), "eventTime": "2020-01-02T03:04:05.1Z"},
        {"payload": b64("l"), "eventTime": "1960-01-02T03:04:05Z"},
        {"payload": b64("m"), "compressionType": "LZ4"},
        {"payload": b64("n"), "encryptionParam": "eA=="},
        {"payload": b64("o"), "compressionType": "NOPE"},
        {"payload": b64("p"), "deliverAt": "7"},
        {"payload": b64("q"), "deliverAt": None, "deliverAfterMs": -5},
        {"payload": b64("r"), "properties": {"": "x"}},
        {"payload": b64("äöü€𝄞"), "key": "ключ", "properties": {"ü": "ö"}, "context": "ß"},
        {"payload": "", "context": "empty"},
        {"payload": "aGVsbG8", "context": "no padding"},
        '{"payload":"eA=="} and more',
        '{"payload":"eA==","payload":"eQ=="}',
    ):  # fmt: skip
        said = talk.ask("p", each)
        if isinstance(said, dict):
            stored += said["result"] == "ok"
        else:  # before 4.0, some messages end it
            talk.open("p", path)
    talk.open("c", "v2/consumer/{t}/s?subscriptionInitialPosition=Earliest&subscriptionType=Shared")
    talk.hear("c", stored)
    talk.note(talk.call("GET", "{t}/stats")["bytesInCounter"])


def refused_messages(talk: Talk) -> None:
    """What no message may be."""
    talk.open("p", "v2/producer/{t}")
    for each in (
        {"payload": b64("x"), "eventTime": "nonsense", "context": "x"},
        {"payload": b64("x"), "eventTime": ""},
        {"payload": b64("x"), "eventTime": 1577934245678},
        {"payload": "!!!", "context": "x"},
        {"payload": "aGVs bG8="}, {"payload": "aGVs\nbG8="}, {"payload": "aGVsb"}, {"payload": "aGVsbG=8"}, {"payload": "-_8="},
        {"payload": 5},
        {"context": "x"},
        {"payload": b64("x"), "properties": [1]},
        {"payload": b64("x"), "properties": {"a": {}}},
        {"payload": b64("x"), "replicationClusters": "x"},
        {"payload": b64("x"), "deliverAt": "q"},
        {"payload": b64("x"), "sequenceId": "q"},
        "{not json", "[]", '"x"', "null", "",
    ):  # fmt: skip
        talk.ask("p", each)
    talk.say("p", b"binary")
    talk.ask("p", {"payload": b64("the first that is stored")})
    talk.ask("p", {"payload": b64("x"), "properties": {"a": None}})


def consuming(talk: Talk) -> None:
    """Acknowledgements and the flow of messages."""
    talk.open("p", "v2/producer/{t}")
    talk.open("c", "v2/consumer/{t}/s?receiverQueueSize=3")
    talk.say("p", *_texts("abcdefgh"))
    talk.hear("p", 8)
    talk.hear("c", 3)
    talk.quiet("c")
    talk.say("c", {"messageId": talk.ids["a"]})
    talk.hear("c")
    talk.say("c", {"type": "negativeAcknowledge", "messageId": talk.ids["b"]})
    talk.hear("c")
    talk.say("c", {"type": "permit", "permitMessages": 2})
    talk.quiet("c")
    talk.ask("c", {"type": "isEndOfTopic"})
    talk.say("c", *({"messageId": talk.ids[each]} for each in "cde"))
    talk.hear("c")
    talk.backlog("s")
    talk.open("other", "v2/consumer/{t}/s")
    talk.close("c")
    talk.open("again", "v2/consumer/{t}/s")
    talk.hear("again", 4)


def commands(talk: Talk) -> None:
    """What ends a consumer."""
    for each in (
        {"type": "permit"}, "no json", "[]", "", {"messageId": b64("xx")}, {"messageId": "!!"}, {}, {"type": "nonsense"},
        {"type": "negativeAcknowledge"}, {"type": "permit", "permitMessages": "x"}, "null",
    ):  # fmt: skip
        talk.open("c", "v2/consumer/{t}/s?pullMode=true")
        talk.say("c", each)
        talk.ask("c", {"type": "isEndOfTopic"})
        talk.close("c")
    for each in ("no json", "[]", "null"):
        talk.open("r", "v2/reader/{t}")
        talk.say("r", each)
        talk.ask("r", {"type": "isEndOfTopic"})
        talk.close("r")


def pulling(talk: Talk) -> None:
    """Messages that come when they are asked for."""
    talk.open("p", "v2/producer/{t}")
    talk.open("c", "v2/consumer/{t}/s?pullMode=true")
    talk.say("p", *_texts("abcd"))
    talk.hear("p", 4)
    talk.quiet("c")
    talk.say("c", {"type": "permit", "permitMessages": 1})
    talk.hear("c")
    talk.quiet("c")
    talk.say("c", {"messageId": talk.ids["a"]})
    talk.quiet("c")
    talk.say("c", {"type": "permit", "permitMessages": 2}, {"type": "permit", "permitMessages": 2})
    talk.hear("c", 3)
    talk.ask("p", {"payload": b64("e")})
    talk.hear("c")


def small_queues(talk: Talk) -> None:
    """Receiver queues of 0, 1 and 2 messages."""
    talk.open("p", "v2/producer/{t}")
    talk.say("p", *_texts("abc"))
    talk.hear("p", 3)
    for size in (0, 1, 2):
        talk.open("c", f"v2/consumer/{{t}}/s{size}?subscriptionInitialPosition=Earliest&receiverQueueSize={size}")  # fmt: skip
        talk.hear("c", max(size, 1))
        talk.quiet("c", 0.2)
        talk.say("c", {"messageId": talk.ids["a"]})
        talk.hear("c")
        talk.close("c")


def giving_back(talk: Talk) -> None:
    """Negative acknowledgements, and those that come too late."""
    talk.open("p", "v2/producer/{t}")
    talk.say("p", *_texts("abc"))
    talk.hear("p", 3)
    talk.open("c", "v2/consumer/{t}/shared?subscriptionInitialPosition=Earliest&subscriptionType=Shared&negativeAckRedeliveryDelay=100")  # fmt: skip
    talk.hear("c", 3)
    talk.ask("c", {"type": "negativeAcknowledge", "messageId": talk.ids["b"]})
    talk.quiet("c", 0.2)
    talk.close("c")
    talk.open("c", "v2/consumer/{t}/one?subscriptionInitialPosition=Earliest&negativeAckRedeliveryDelay=100")
    talk.hear("c", 3)
    talk.say("c", {"type": "negativeAcknowledge", "messageId": talk.ids["b"]})
    talk.hear("c", 3)
    talk.close("c")
    talk.open("c", "v2/consumer/{t}/late?subscriptionInitialPosition=Earliest&subscriptionType=Shared&ackTimeoutMillis=1000")  # fmt: skip
    talk.hear("c", 3)
    talk.say("c", {"messageId": talk.ids["a"]})
    talk.hear("c", 2, sort=True)


def dead_letters(talk: Talk) -> None:
    """A message that is delivered too often."""
    talk.open("p", "v2/producer/{t}?producerName=p")
    talk.open("dead", "v2/consumer/{t}-s-DLQ/dead")
    talk.open("c", "v2/consumer/{t}/s?subscriptionType=Shared&negativeAckRedeliveryDelay=100&maxRedeliverCount=1&consumerName=c")  # fmt: skip
    talk.ask("p", {"payload": b64("a"), "key": "k", "properties": {"z": "1"}, "eventTime": "2020-01-02T03:04:05Z"})  # fmt: skip
    talk.hear("c")
    talk.ask("c", {"type": "negativeAcknowledge", "messageId": talk.ids["a"]})
    talk.say("c", {"type": "negativeAcknowledge", "messageId": talk.ids["a"]})
    talk.hear("dead")
    talk.backlog("s")


def batching(talk: Talk) -> None:
    """Batches, and their acknowledgement as a whole."""
    talk.open("p", "v2/producer/{t}?producerName=p&batchingEnabled=true&batchingMaxMessages=3&batchingMaxPublishDelay=60000")  # fmt: skip
    for each in "abc":
        talk.say("p", {"payload": b64(each), "context": each, "key": each, "properties": {"of": each}, "eventTime": "2020-01-02T03:04:05Z"})  # fmt: skip
    talk.hear("p", 3)
    talk.say("p", {"payload": b64("d"), "context": "d"})
    talk.quiet("p")
    talk.say("p", {"payload": b64("e"), "context": "e", "deliverAfterMs": 1})
    talk.hear("p", 2)
    talk.note(talk.call("GET", "{t}/stats")["bytesInCounter"])
    talk.open("c", "v2/consumer/{t}/s?subscriptionInitialPosition=Earliest")
    talk.hear("c", 5)
    talk.say("c", {"messageId": talk.ids["a"]}, {"messageId": talk.ids["b"]})
    talk.backlog("s")
    talk.say("c", {"messageId": talk.ids["c"]})
    talk.backlog("s")


def compressing(talk: Talk) -> None:
    """Each codec."""
    text = "x" * 300
    for codec in ("NONE", "LZ4", "ZLIB", "SNAPPY", "ZSTD"):
        talk.open("p", f"v2/producer/{{t}}?compressionType={codec}")
        talk.ask("p", {"payload": b64(f"{codec}{text}")})
        talk.close("p")
    talk.open("p", "v2/producer/{t}?compressionType=LZ4&batchingEnabled=true&batchingMaxMessages=2&batchingMaxPublishDelay=60000")  # fmt: skip
    talk.say("p", *_texts("yz"))
    talk.hear("p", 2)
    talk.open("c", "v2/consumer/{t}/s?subscriptionInitialPosition=Earliest")
    talk.hear("c", 7)


def chunks(talk: Talk) -> None:
    """Messages that another client sends in chunks."""
    talk.call("PUT", "{t}")
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(f"http://{talk.address}", logger=logger)
    topic = talk.topic.replace("persistent/", "persistent://")
    given = {"producer_name": "p", "batching_enabled": False, "chunking_enabled": True}
    for codec in (pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4):
        producer = client.create_producer(topic, compression_type=codec, **given)
        text = random.Random(1).randbytes(750_000).hex().encode()
        producer.send(text, properties={"a": "b"})
        producer.close()
    client.close()
    for type_ in ("Exclusive", "Shared"):
        talk.open("c", f"v2/consumer/{{t}}/{type_}?subscriptionInitialPosition=Earliest&subscriptionType={type_}&negativeAckRedeliveryDelay=100")  # fmt: skip
        came = talk.hear_large("c", 2)
        if type_ == "Exclusive":
            talk.say("c", {"type": "negativeAcknowledge", "messageId": came[1]})
            talk.hear_large("c", 2)
        talk.say("c", {"messageId": came[0]})
        talk.backlog(type_)
        talk.say("c", {"messageId": came[1]})
        talk.backlog(type_)


def encrypting(talk: Talk) -> None:
    """A producer that encrypts itself, and consumers that can't decrypt."""
    keys = {"mine": {"keyValue": b64("key"), "metadata": {"m": "v"}}}
    talk.open("p", f"v2/producer/{{t}}?encryptionKeys={quote(b64(json.dumps(keys)))}")
    param = {"encryptionParam": b64("param")}
    for each in (
        {"payload": b64("a"), **param, "context": "1"},
        {"payload": b64("b"), **param, "compressionType": "LZ4", "uncompressedMessageSize": 50, "key": "k"},
        {"payload": b64("c"), **param, "compressionType": "LZ4"},
        {"payload": b64("c"), **param, "uncompressedMessageSize": 50},
        {"payload": b64("c"), "encryptionParam": "!!"},
        {"payload": b64("d"), **param, "compressionType": "NONE", "uncompressedMessageSize": 5},
        {"payload": b64("e"), **param, "compressionType": "NOPE"},
    ):
        talk.ask("p", each)
    talk.open("c", "v2/consumer/{t}/told?subscriptionInitialPosition=Earliest&cryptoFailureAction=CONSUME")
    talk.hear("c", 4)
    talk.open("fails", "v2/consumer/{t}/fails?subscriptionInitialPosition=Earliest")
    talk.quiet("fails")
    talk.backlog("fails")
    talk.open(
        "drops", "v2/consumer/{t}/drops?subscriptionInitialPosition=Earliest&cryptoFailureAction=DISCARD"
    )
    talk.quiet("drops")
    talk.backlog("drops")
    for text in ("a,b", b64("{}"), b64('{"a":{}}'), b64('{" ":{"keyValue":"a2V5"}}'), b64("[]")):
        talk.open("refused", f"v2/producer/{{t}}?encryptionKeys={quote(text)}")


def reading(talk: Talk) -> None:
    """Readers."""
    talk.open("p", "v2/producer/{t}")
    talk.say("p", *_texts("abc"))
    talk.hear("p", 3)
    talk.open("latest", "v2/reader/{t}?readerName=r")
    talk.open("all", "v2/reader/{t}?messageId=earliest")
    talk.hear("all", 3)
    talk.open("after", f"v2/reader/{{t}}?messageId={quote(talk.ids['a'])}")
    talk.hear("after", 2)
    talk.open("two", "v2/reader/{t}?messageId=earliest&receiverQueueSize=2")
    talk.hear("two", 2)
    talk.quiet("two")
    talk.say("two", {})
    talk.hear("two")
    talk.open("none", "v2/reader/{t}?messageId=earliest&receiverQueueSize=0")
    talk.quiet("none")
    talk.open("one", f"v2/reader/{{t}}?messageId={quote(talk.ids['a'])}&receiverQueueSize=1")
    talk.quiet("one")
    talk.ask("p", {"payload": b64("d")})
    talk.hear("latest")
    talk.ask("latest", {"type": "isEndOfTopic"})


def partitioned(talk: Talk) -> None:
    """Partitions, by key and in turns."""
    talk.call("PUT", "{t}/partitions", "3")
    talk.open("p", "v2/producer/{t}")
    for each in range(6):
        talk.ask("p", {"payload": b64(str(each)), "key": f"k{each}"})
    talk.close("p")
    talk.open("p", "v2/producer/{t}?hashingScheme=Murmur3_32Hash")
    for each in range(6):
        talk.ask("p", {"payload": b64(str(6 + each)), "key": f"k{each}"})
    talk.close("p")
    talk.open("p", "v2/producer/{t}?messageRoutingMode=RoundRobinPartition")
    talk.say("p", *_texts("zzz"))
    talk.hear("p", 3, sort=True)
    talk.open("c", "v2/consumer/{t}/s?subscriptionInitialPosition=Earliest")
    talk.hear("c", 15, sort=True)
    for id in talk.ids.values():
        talk.say("c", {"messageId": id})
    talk.ask("c", {"type": "isEndOfTopic"})
    talk.open("r", "v2/reader/{t}?messageId=earliest")
    talk.hear("r", 15, sort=True)


def several_topics(talk: Talk) -> None:
    """Consumers of several topics, and of a pattern."""
    name = talk.topic.rpartition("/")[2]
    for each in "ab":
        talk.open(each, f"v2/producer/{talk.topic}-{each}")
        talk.ask(each, {"payload": b64(each)})
    talk.open("c", f"v3/consumer/s?topics={name}-a,{name}-b&subscriptionInitialPosition=Earliest")
    talk.hear("c", 2, sort=True)
    talk.ask("c", {"type": "isEndOfTopic"})
    talk.close("c")
    talk.open("c", f"v3/consumer/t?topics={name}-a,{name}-b")
    talk.say("c", {"messageId": talk.ids["a"]})
    talk.ask("c", {"type": "negativeAcknowledge", "messageId": talk.ids["a"]})
    talk.close("c")
    pattern = quote(f"persistent://public/default/{name}-.*")
    talk.open("c", f"v3/consumer/pattern?topicsPattern={pattern}&subscriptionInitialPosition=Earliest")
    talk.hear("c", 2, sort=True)
    for each in ("", "?topics=a,b&topicsPattern=c", "?topics=a,", "?topics=", "?topics=x://y"):
        talk.open("refused", f"v3/consumer/s{each}")
    talk.open("refused", "v3/consumer/?topics=a")


def not_persistent(talk: Talk) -> None:
    """A topic that stores nothing."""
    topic = f"non-{talk.topic}"
    talk.open("c", f"v2/consumer/{topic}/s")
    talk.open("p", f"v2/producer/{topic}")
    talk.ask("p", {"payload": b64("a"), "context": "x"})
    talk.hear("c")
    talk.say("c", {"messageId": talk.ids["a"]})
    talk.ask("p", {"payload": b64("b")})
    talk.hear("c")


def unloading(talk: Talk) -> None:
    """A topic that goes away under its clients."""
    talk.open("p", "v2/producer/{t}")
    talk.open("c", "v2/consumer/{t}/s?subscriptionType=Shared")
    talk.open("r", "v2/reader/{t}")
    talk.ask("p", {"payload": b64("a")})
    talk.hear("c")
    talk.hear("r")
    talk.say("c", {"messageId": talk.ids["a"]})
    talk.backlog("s")
    talk.call("PUT", "{t}/unload")
    talk.ask("p", {"payload": b64("b")})
    talk.hear("c")
    talk.hear("r")
    talk.call("POST", "{t}/terminate")
    talk.ask("p", {"payload": b64("c"), "context": "after the end"})
    talk.quiet("c", 0.5)
    talk.ask("c", {"type": "isEndOfTopic"})
    talk.ask("r", {"type": "isEndOfTopic"})
    talk.open("late", "v2/producer/{t}")


def unsubscribing(talk: Talk) -> None:
    """A subscription that is given up."""
    talk.open("p", "v2/producer/{t}")
    talk.open("c", "v2/consumer/{t}/s")
    talk.ask("p", {"payload": b64("a")})
    talk.hear("c")
    talk.say("c", {"type": "unsubscribe"})
    talk.quiet("c")
    talk.note(sorted(talk.call("GET", "{t}/subscriptions")))
    talk.ask("p", {"payload": b64("b")})
    talk.quiet("c")


def sizes(talk: Talk) -> None:
    """A large message, and one that is too large."""
    talk.open("p", "v2/producer/{t}")
    talk.ask("p", {"payload": "A" * 800_000, "context": "large"})
    talk.say("p", {"payload": "A" * (1 << 20)})
    talk.hear("p")


def parameters(talk: Talk) -> None:
    """Values that parameters can and can't have."""
    for each in (
        "hashingScheme=x", "sendTimeoutMillis=x", "sendTimeoutMillis=-1", "sendTimeoutMillis=0", "batchingEnabled=x", "batchingMaxMessages=0",
        "batchingEnabled=true&batchingMaxMessages=0", "batchingEnabled=true&batchingMaxPublishDelay=0",
        "batchingEnabled=true&maxPendingMessages=-1", "messageRoutingMode=x", "messageRoutingMode=CustomPartition", "compressionType=x",
        "compressionType=zlib", "initialSequenceId=x", "initialSequenceId=-5", "producerName=", "nonsense=1", "accessMode=Exclusive",
    ):  # fmt: skip
        talk.open("p", f"v2/producer/{{t}}?{each}")
    talk.open("p", "v2/producer/{t}?producerName=p")
    talk.open("p", "v2/producer/{t}?producerName=p")
    for number, each in enumerate((
        "ackTimeoutMillis=x", "ackTimeoutMillis=10", "ackTimeoutMillis=0", "ackTimeoutMillis=1000", "subscriptionType=x",
        "subscriptionType=Key_Shared", "subscriptionMode=x", "subscriptionMode=NonDurable", "subscriptionInitialPosition=x",
        "subscriptionInitialPosition=earliest", "receiverQueueSize=x", "receiverQueueSize=-1", "consumerName=", "priorityLevel=-1",
        "priorityLevel=x", "negativeAckRedeliveryDelay=-1", "negativeAckRedeliveryDelay=0", "negativeAckRedeliveryDelay=x",
        "maxRedeliverCount=0", "maxRedeliverCount=x", "deadLetterTopic=x", "maxRedeliverCount=1", "maxRedeliverCount=1&deadLetterTopic=",
        "cryptoFailureAction=x", "pullMode=x",
    )):  # fmt: skip
        talk.open("c", f"v2/consumer/{{t}}/s{number}?{each}")
    for each in (
        "messageId=x", "messageId=", "messageId=!!", "messageId=%20", "receiverQueueSize=x", "receiverQueueSize=-1", "readerName=",
        "cryptoFailureAction=x",
    ):  # fmt: skip
        talk.open("r", f"v2/reader/{{t}}?{each}")


def paths(talk: Talk) -> None:
    """Paths that there are, and others."""
    v1 = talk.topic.replace("public/", "public/standalone/")
    for each in (
        "v2/producer/persistent/public/default", "v2/producer/persistent/public/default/", "v2/producer/nonsense/public/default/t",
        "v2/producer/persistent/nope/default/t", "v2/producer/persistent/public/nope/t", "v2/producer/persistent/pub!lic/default/t",
        "v2/producer/persistent/public/default/t%20x", "v3/producer/persistent/public/default/t", "v2/consumer/persistent/public/default/t",
        "v2/consumer/persistent/public/default/t/", "v2/consumer/persistent/public/default/t/s/x",
        "v2/consumer/persistent/public/nope/t/s", "v2/reader/persistent/public/nope/t", "v2/reader/persistent/public/default/t/",
        "v3/reader/persistent/public/default/t", "producer/persistent/public/default/t", f"producer/{v1}", f"consumer/{v1}/s", f"reader/{v1}",
        "v2/consumer/persistent/public/default/t/s%2Fx",
    ):  # fmt: skip
        talk.open("w", each)


def limits(talk: Talk) -> None:
    """What policies refuse."""
    namespace = "public/ws-limits"
    talk.call("PUT", f"namespaces/{namespace}")
    talk.topic = talk.topic.replace("public/default", namespace)
    talk.call("POST", f"namespaces/{namespace}/maxProducersPerTopic", "1")
    talk.call("POST", f"namespaces/{namespace}/maxConsumersPerTopic", "1")
    talk.open("p", "v2/producer/{t}")
    talk.open("refused", "v2/producer/{t}")
    talk.open("c", "v2/consumer/{t}/s?subscriptionType=Shared")
    talk.open("refused", "v2/consumer/{t}/s?subscriptionType=Shared")
    talk.open("refused", "v2/reader/{t}")


CONVERSATIONS: dict[str, Callable[[Talk], None]] = {
    each.__name__: each
    for each in (
        producing, refused_messages, consuming, commands, pulling, small_queues, giving_back, dead_letters, batching, compressing, chunks,
        encrypting, reading, partitioned, several_topics, not_persistent, unloading, unsubscribing, sizes, parameters, paths, limits,
    )
}  # fmt: skip


def roles(talk: Talk) -> None:
    """Who may open what, with tokens and authorization."""
    talk.call("PUT", "{t}")
    for role in ("produce", "consume"):
        talk.call("POST", f"namespaces/public/default/permissions/{role}r", json.dumps([role]))
    of = {role: token(role) for role in ("producer", "consumer", "stranger", NOBODY)}
    everything = "v2/producer/{t}", "v2/consumer/{t}/s", "v2/reader/{t}"
    for role, text in (*of.items(), (SUPERUSER, token(SUPERUSER))):
        for path in everything:
            talk.open(role, path, Authorization=f"Bearer {text}")
        talk.close_all()
    for header in (
        "",
        "Bearer x",
        of["producer"],
        f"Basic {of['producer']}",
        f"Bearer {token('producer', exp=1)}",
    ):
        talk.open("refused", everything[0], Authorization=header)
    talk.token = None
    for path in (
        *everything,
        f"{everything[0]}?token={of['producer']}",
        f"{everything[0]}?token={of['consumer']}",
        f"{everything[0]}?token=x",
    ):
        talk.open("no header", path)
    talk.open("both", f"{everything[0]}?token={of['producer']}", Authorization="Bearer x")
    talk.open("both", f"{everything[0]}?token=x", Authorization=f"Bearer {of['producer']}")
    own = {"Authorization": f"Bearer {of['producer']}"}
    for path in ("persistent/nope/default/t", "persistent/public/nope/t", "bad/public/default/t"):
        talk.open("refused", f"v2/producer/{path}", **own)
        talk.open("root", f"v2/producer/{path}", Authorization=f"Bearer {token(SUPERUSER)}")
    talk.open("refused", "v2/consumer/{t}/s?receiverQueueSize=x", **own)
    talk.open("refused", "v2/producer/{t}?sendTimeoutMillis=x", Authorization=f"Bearer {of['consumer']}")
    name = talk.topic.rpartition("/")[2]
    for other in ("public/default", "other/default", "public/nope"):
        path = f"v3/consumer/several?topics={name},persistent://{other}/{name}-2"
        talk.open("several", path, Authorization=f"Bearer {of['consumer']}")


BEFORE_4_0 = {name: each for name, each in CONVERSATIONS.items() if each is not several_topics}
"""Those that brokers before 4.0 can hold."""


def held(address: str, name: str, *, old: bool = False) -> list[Any]:
    """Hold a conversation with the broker there. Returns what came back. `old`: the broker is one before 4.0."""
    conversation = CONVERSATIONS.get(name, roles)
    password = token(SUPERUSER) if conversation is roles else None
    talk = Talk(address, name.replace("_", "-"), password, old=old)
    try:
        conversation(talk)
    finally:
        talk.close_all()
    return talk.heard
