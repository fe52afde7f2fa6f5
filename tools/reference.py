"""The reference in `docs/` and the JSON Schema of commands, written from the contracts: ``make docs``.

A test fails when a file differs from what this module writes.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import msgspec

from schemas import commands as c
from schemas import effect_fields, effects
from schemas.effects import KINDS, RESPONSES
from schemas.outputs import IDENTITY, OUTPUT
from schemas.records import RECORD
from sinks.tables import TABLES
from streaming.answers.profile_rules import PROFILE_RULES, ProfileRule, entries
from streaming.broker import broker
from streaming.broker.admin import (
    dynamic_settings,
    namespaces,
    partitioned_topics,
    permissions,
    resources,
    tenants,
)
from streaming.broker.admin_table import NAMESPACE, SCHEMAS, TOPIC, Call
from streaming.broker.config import (
    LINES,
    LONGEST,
    ONLY,
    PASSED_ON,
    PROFILES,
    RANGES,
    RELEASES,
    WITHOUT_EFFECT,
    ServiceConfiguration,
    abbreviated,
    changes,
)
from streaming.broker.persistent import admin_operations
from streaming.broker.policies.admin_calls import POLICY_CALLS
from streaming.broker.policies.hierarchy import (
    AUTO_UPDATE_STRATEGIES,
    AutoSubscriptionCreationOverride,
    AutoTopicCreationOverride,
    BacklogQuota,
    DelayedDeliveryPolicies,
    DispatchRate,
    InactiveTopicPolicies,
    PersistencePolicies,
    Policies,
    PublishRate,
    RetentionPolicies,
    SubscribeRate,
)
from streaming.broker.policies.kept import KEPT, KEPT_WITHOUT_EFFECT
from streaming.broker.schema import schema_registry
from streaming.server.protection import NOTHING, OPTIONS
from tools import example, openapi
from tools.descriptions import Field, descriptions, doc, fields, first_sentence, sections
from tools.json_schema import command_schema, policies_schema
from tools.picture import picture
from tools.support import support

ROOT = Path(__file__).parents[1]
NOTE = "<!-- Written by `make docs` from the code. Do not edit. -->\n"

OPERATORS = (c.Admin, c.BrokerConfig)
ANYBODY = (c.Tick, c.RunCheck, c.Restart, c.Fault)
CLIENTS = tuple(each for each in typing.get_args(c.AnyCommand) if each not in OPERATORS + ANYBODY)
"""Commands by who sends them."""

PARTS = (
    c.MessageIdData, c.FirstChunkMessageId, c.MessageMetadata, c.KeyValue, c.KeyLongValue, c.SchemaData, c.KeySharedMeta, c.IntRange, c.TxnSubscription,
    c.EncryptionKeys, c.MirroredSubscription, c.MirroredConsumer, c.MirroredProducer,
)  # fmt: skip

# -- commands -----------------------------------------------------------------------------------------------------

COMMANDS = """\
# Commands

A command log is a sequence of **records**. Each holds one **command**: what a client, an operator or a test sends to the
broker. Commands and their fields have the names of Pulsar's binary protocol (`PulsarApi.proto`), so if you know the
protocol, you know most of this page. The examples are records of [example.jsonl](../example.jsonl), a small log with every
command but those of transactions, which are in [example-transactions.jsonl](../example-transactions.jsonl). Replay it with `magnetar replay docs/example.jsonl --out example`; [outputs.md](outputs.md) shows the rows that
come out.

* [Records](#records): the coordinates of a command, and its forms
* [The short form](#the-short-form): publish without a connection
* [Commands of clients](#commands-of-clients)
* [Commands of operators](#commands-of-operators): admin calls, configuration
* [Time, checks and faults](#time-checks-and-faults): for operators and tests
* [Parts](#parts): nested messages
* [Admin calls](#admin-calls): policies and calls on topics
* [JSON Schema](#json-schema): check and complete records in an editor

{contents}

## Records

A record is a command and its coordinates.

{coordinates}

* In **JSON Lines** a record is one object per line: the coordinates and the fields of the command side by side. A record
  without `timestamp` takes that of the previous line. `offset` is counted from 0 if it is absent. If no line has a
  `partition`, the log is spread over partitions by topic, and a record without a topic is copied to all of them.
* In **Kafka** the key is the topic in UTF-8, the value is the command, and Kafka's own partition, offset and timestamp
  count. The value may be a line of JSON Lines with `topic` and `timestamp`, if they are the record's key and time; without
  a `timestamp`, the record's time counts. If there is no key, `topic` stands in for it, but only in the partition where
  `magnetar produce` would put the record (crc32 of the topic modulo the number of partitions), since a topic never spans
  two. Anything else goes to quarantine (rule `coordinates`), and so does a key that is not UTF-8 (rule `key_encoding`).
* In **Parquet** each coordinate is a column, and the column `value` holds the command.

In a log, a `partition` is from 0 to 99,999 and an `offset` from 0 to 10^18 − 1. A log with any other is refused as a whole.

A **topic** has the name `persistent://tenant/namespace/topic` or `non-persistent://…`. Tenant and namespace consist of ASCII
letters, digits and `-=:._`. The topic's own name is not blank and contains no slash. None of the three is `.` or `..`. A
command for any other name is answered with InvalidTopicName, or quarantined (rule `invalid_topic`) if it has no answer.

A command is an object in JSON, for people, or in MessagePack, for machines. Its name is in the field `command`; the short
form has none. Types below are those of JSON; `int32` and `int64` are integers of 32 and 64 bits, and `bytes` is a base64
string in JSON and binary in MessagePack. The default "absent" means that leaving the field out is different from giving any
value. An unknown field, a wrong type or a number out of range makes a record malformed: it goes to quarantine and becomes
an output row of the kind [QUARANTINED](outputs.md#quarantined), as does one that nests arrays and objects more than 100
deep. Other records are not affected.

"""

SCHEMA = """\

## JSON Schema

`schemas/command.schema.json` (draft 2020-12) describes one record in JSON Lines, with all the descriptions on this page. It is
in the wheel, too: `python -c "from importlib.resources import files; print(files('schemas') / 'command.schema.json')"`
prints its path.

**In an editor**: editors apply a schema to a `.json` file, not to each line of a `.jsonl` file, so write a record in a file
of its own. For VS Code, in `settings.json`:

```json
"json.schemas": [{"fileMatch": ["*.record.json"], "url": "./schemas/command.schema.json"}]
```

Then `order.record.json` is completed and checked as you type, and `jq -c . order.record.json >> log.jsonl` appends it to a
log.

**On the command line**: `check-jsonschema --schemafile schemas/command.schema.json order.record.json` checks one record.
With the Python package `jsonschema`, every line of a log:

```python
import json, jsonschema

validator = jsonschema.Draft202012Validator(json.load(open("schemas/command.schema.json")))
for number, line in enumerate(open("log.jsonl"), 1):
    for error in validator.iter_errors(json.loads(line)):
        print(f"line {number}: {error.json_path}: {error.message}")
```

The schema knows the form of records. Rules that it does not know, such as the names of settings and the rules of the
[input suites](quality.md), are checked when a record is folded.
"""


def commands() -> str:
    """``docs/reference/commands.md``: every command and its fields."""
    coordinates = table(
        ("field", "type", "default", "unit", "description"),
        (
            (f"`{name}`", {"int32": "int32", "int64": "int64"}.get(str(field.type), "string"), default, _unit(field), _doc(field))
            for name, default in (("partition", "see below"), ("offset", "see below"), ("timestamp", "see below"), ("topic", "absent"))
            for field in [RECORD.field(name)]
        ),
    )  # fmt: skip
    page = [NOTE, COMMANDS.format(contents=_contents(), coordinates=coordinates), "## The short form\n\n"]
    page += [doc(c.Publish), "\n\n", _fields(c.Publish), _example(example.SHORT_FORM)]
    page.append("\n## Commands of clients\n")
    for command in CLIENTS:
        page.append(_command(command))
    page.append("\n## Commands of operators\n")
    for command in OPERATORS:
        page.append(_command(command))
    page.append("\n## Time, checks and faults\n")
    for command in ANYBODY:
        page.append(_command(command))
    page.append("\n## Parts\n\nMessages that are nested in commands.\n")
    for part in PARTS:
        page += [f"\n### {part.__name__}\n\n", doc(part), "\n\n", _fields(part)]
    page += [_admin_calls(), SCHEMA]
    return "".join(page)


def _contents() -> str:
    def rows() -> Iterator[tuple[str, str, str]]:
        yield "[the short form](#the-short-form)", "a producer", first_sentence(c.Publish)
        senders = (("a client", CLIENTS), ("an operator", OPERATORS), ("an operator or a test", ANYBODY))
        for sender, group in senders:
            for command in group:
                tag = _tag(command)
                yield f"[{tag}](#{tag.lower()})", sender, first_sentence(command)

    return table(("command", "sent by", "what it does"), rows())


def _command(command: type[msgspec.Struct]) -> str:
    own = [field for field in fields(command) if field.name != "connection"]
    connection = [field for field in fields(command) if field.name == "connection"]
    return f"\n### {_tag(command)}\n\n{doc(command)}\n\n{_table(connection + own)}{_example(_tag(command))}"


def _tag(command: type[msgspec.Struct]) -> str:
    return str(command.__struct_config__.tag)


def _example(command: str) -> str:
    return f"\n```json\n{example.commands()[command]}\n```\n"


def _calls(below: str, *calls: Call[Any]) -> str:
    """The calls below a path. Those of one handler are one row, since its docstring says what they do."""
    paths: dict[Callable[..., object], list[str]] = {}
    for call in calls:
        paths.setdefault(call.handler, []).append(
            f"`{f'{call.method} {call.path.removeprefix(below)}'.strip()}`"
        )
    return table(
        ("call", "what it does"),
        ((", ".join(found), " ".join(doc(handler).split())) for handler, found in paths.items()),
    )


_PUBLISH_RATES = """
A **publish rate** delays and refuses nothing. Pulsar reads nothing more from the connection of a producer that exceeds it
until there are permits again, so the client sees later receipts. The commands of a log have been read already, and
their times are when that was: if the real broker limited the producer, the times show it. A limit that would have
been exceeded shows as `publishRateLimitedTimes` in the topic's stats: how often it would have stopped reading from a
connection.
"""


def _admin_calls() -> str:
    names: dict[str, list[str]] = {}
    for name, (policy, _) in POLICY_CALLS.items():
        names.setdefault(policy, []).append(f"`{name}`")
    names["backlogQuota"] = ["`backlogQuota`"]
    bodies = {field.name: field.type for field in fields(Policies)} | {
        "backlogQuota": "[BacklogQuota](#backlogquota)"
    }
    described = descriptions(Policies)
    policies = table(
        ("name in the path", "body", "description"),
        (
            (" or ".join(names[policy]), bodies[policy], described[policy])
            for policy in bodies
            if policy in names
        ),
    )
    kept = ", ".join(
        f"`{name}`"
        for name in KEPT
        if name in KEPT_WITHOUT_EFFECT
        and name not in ("entryFilters", "shadowTopics", "removeOffloadPolicies")
    )
    older = ", ".join(f"`{name}`" for name in AUTO_UPDATE_STRATEGIES)
    topic_calls = (
        table_.calls
        for table_ in (admin_operations.CALLS, broker.CALLS, permissions.CALLS, partitioned_topics.CALLS)
    )
    return f"""
## Admin calls

The paths of [ADMIN](#admin) are those of Pulsar's admin REST API below `/admin/v2`. A call that Magnetar does not know is
answered with 404 and becomes an output row of the kind [UNSUPPORTED](outputs.md#unsupported). As in Pulsar, a field of a body that the
call does not know is ignored. In a [file of policies](../operate/policies.md), it is a mistake.

### Policies

`POST` or `PUT` sets a policy, `DELETE` removes it, `GET` shows what the level sets (no body: nothing). A limit below 0 is
refused with 412. The path is
`/namespaces/TENANT/NAMESPACE/NAME` or `/persistent/TENANT/NAMESPACE/TOPIC/NAME`. A topic's policy takes
precedence over the namespace's, which takes precedence over the broker's [setting](settings.md).

{policies}
The type of a backlog quota is a parameter, `?backlogQuotaType=destination_storage` (the default) or `message_age`;
`GET …/backlogQuotaMap` shows both. A topic's TTL may be a parameter, too: `?messageTTL=3600`. `DELETE …/policies` removes all
policies of a topic, and `DELETE …/removeOffloadPolicies` the offload policies of a namespace.

`compactionThreshold` of a namespace or topic (bytes; 0: off) says from when on a topic is [compacted](../rules/compaction.md) by itself.

`schemaAutoUpdateCompatibilityStrategy` is the older policy of a namespace for `schemaCompatibilityStrategy`, and counts where that is not
set. Its body is one of {older}.

`GET …?applied=true` on a topic shows the value of the first level that sets the policy. As in Pulsar, it does so for
`messageTTL`, `retention`, `backlogQuotaMap`, `deduplicationEnabled`, `maxProducers`, `maxConsumers`, the limits of
unacknowledged messages, `delayedDelivery`, `persistence`, and the rates but `publishRate`. Other policies and namespaces ignore the parameter.

#### Policies without effect

These are kept and returned, and have no effect, since what they govern does not exist here: bookies, replication, offloading
and more. {kept}. One of them, `dispatcherPauseOnAckStatePersistent`, is not supported: delivery does not pause where
more acks must be written than managedLedgerMaxUnackedRangesToPersist allows. So are the [bundles](#calls-on-a-namespace) of a namespace, its `properties`, `replication` and `allowedClusters` (`standalone` is the only cluster),
and `permissions`. A server with [authorization](../operate/security.md#authorization) enforces `subscriptionAuthMode` and `permissions`. `entryFilters`, `shadowTopics`, and the resource group of a namespace would have an effect, so setting one is answered with 501.

#### RetentionPolicies

{doc(RetentionPolicies)}

{_fields(RetentionPolicies)}
#### BacklogQuota

{doc(BacklogQuota)}

{_fields(BacklogQuota)}
#### DelayedDeliveryPolicies

{doc(DelayedDeliveryPolicies)}

{_fields(DelayedDeliveryPolicies)}
#### InactiveTopicPolicies

{doc(InactiveTopicPolicies)}

{_fields(InactiveTopicPolicies)}

#### PersistencePolicies

{doc(PersistencePolicies)}

{_fields(PersistencePolicies)}
#### AutoTopicCreationOverride

{doc(AutoTopicCreationOverride)}

{_fields(AutoTopicCreationOverride)}
#### AutoSubscriptionCreationOverride

{doc(AutoSubscriptionCreationOverride)}

{_fields(AutoSubscriptionCreationOverride)}
#### DispatchRate

{doc(DispatchRate)}

{_fields(DispatchRate)}
The path `/persistent/TENANT/NAMESPACE/TOPIC/SUBSCRIPTION/dispatchRate` is that of the rate of one subscription of a topic.

#### PublishRate

{doc(PublishRate)}

{_fields(PublishRate)}
#### SubscribeRate

{doc(SubscribeRate)}

{_fields(SubscribeRate)}
#### Rate limits

Permits renew by the clock of the log, as in Pulsar 4.0.7. A **dispatch rate** lets a dispatcher read while there are permits,
for messages and for bytes, then takes what was sent, which may be more than there was. Permits are added when a dispatcher
looks for them and a whole period is over since the last time, at most as many as the rate. A dispatcher that finds none looks
again every second; a FLOW, a redelivery or a consumer that leaves makes it look in between. The rates of the broker, the
topic and the subscription must all have permits. The broker's counts the topics of an ingress partition. With
`dispatchThrottlingOnNonBacklogConsumerEnabled` off, they limit no subscription that has caught up.

Each change of a policy gives all permits at once, whatever the policy is; so does loading a topic. A subscription's permits
start anew when its type changes.

Non-persistent topics have no dispatch rates and no subscribe rates, as in Pulsar.

A **subscribe rate** adds permits in proportion to time. A consumer without permits gets NotAllowedError. Pulsar knows
a consumer by its host, its name and its id. A log has no hosts, so the name and the id must do.
{_PUBLISH_RATES}
### Calls on tenants

Tenants and namespaces need not be created, unless the setting [namespacesMustExist](settings.md) is true.

{_calls("", *tenants.CALLS.calls)}
### Calls on a namespace

Below `/namespaces/TENANT/NAMESPACE`. Those that do something to topics concern all topics of the namespace, or those of a
bundle.

{_calls(NAMESPACE, *namespaces.CALLS)}
These list namespaces and topics. `{{domain}}` is `persistent` or `non-persistent`. Each ingress partition answers with its own
topics.

{_calls("", *namespaces.LISTS.calls)}
### Calls on the cluster

All but the dynamic settings is kept and returned without effect.

{_calls("", *dynamic_settings.CALLS.calls, *resources.CALLS.calls)}
### Calls on a topic

Below `/persistent/TENANT/NAMESPACE/TOPIC`. On a `/non-persistent/…` topic, only its policies, `PUT`, `GET /stats`,
`GET /subscriptions`, `PUT /unload`, `DELETE` and `DELETE /subscription/{{subscription}}` are allowed; other calls are answered with 405. A position in a body is an object with
`ledgerId` and `entryId`, and optionally `batchIndex` and `excluded` (true: the message after it); absent ids mean the
latest message.

{_calls(TOPIC, *chain.from_iterable(topic_calls))}
### Calls on schemas

Below `/schemas/TENANT/NAMESPACE/TOPIC`. The partitions of a topic share its schemas. A schema in a body is an object with
`type`, such as `JSON`, `schema`, its definition, and `properties`.

{_calls(SCHEMAS, *schema_registry.CALLS.calls)}
### Calls on a partitioned topic

The partitions of a topic are in several ingress partitions. So the calls on a partitioned topic as a whole that change
something (`/partitions`, `/properties`, `/permissions`, its schemas, and its policies, which hold for all partitions) belong to every ingress partition,
as those on a namespace: in Kafka, write them to each of them, without a key. `magnetar produce` and a replay do so themselves,
also if the record has the topic. Each ingress partition answers. A policy of a partition itself takes precedence. All other
calls are on single partitions: make one call for each.
"""


# -- outputs ------------------------------------------------------------------------------------------------------

OUTPUTS = """\
# Output rows

Everything the broker does is a row: an answer to a client, a delivered message, an expiry, a deleted ledger. Each row has a
**kind**, and each kind has its own columns. `magnetar replay` writes one table per kind,
`tables/kind=KIND/*.parquet`, and `magnetar run` [one Delta table](#the-table-of-a-live-query) of all kinds. [Reading them](#reading-the-tables) shows how to query one kind or all of them. A table has the
[columns of every row](#columns-of-every-row) and those listed for its kind. One that is not always filled may be null.

The examples are rows of [example.jsonl](../example.jsonl), a small log with every command. "Line 12" is the line of the record
that caused the row.

* [The folder of a replay](#the-folder-of-a-replay)
* [Reading the tables](#reading-the-tables)
* [The printed table](#the-printed-table)
* [Columns of every row](#columns-of-every-row)
* [The response topic](#the-response-topic): the answers to clients in Kafka
* The kinds, in this order:

{contents}

## The folder of a replay

| path below `--out` | contents |
|---|---|
| `tables/` | every output row, one table per kind |
| `store/` | the ledger store: the entries that the topics still hold |
| `quarantine/` | refused records, see [quality.md](quality.md#quarantine-inspect-repair-resubmit) |
| `quality/` | counts of rows that broke a rule of the output suites, if there are any, and the Data Docs of `magnetar quality` |
| `state/` | the brokers' states at the end, see [answers.md](../guide/answers.md), and `replay.json`: what was replayed, see [whatif.md](../guide/whatif.md#two-finished-replays) |
| `checkpoint/` | Spark's offsets and the brokers' states. `--no-spark` writes none |

The `--store` of `magnetar run` has the same `tables/`, `quarantine/` and `quality/`; the ledger store's `segments/`,
`ledgers/` and `deletions/` are directly in it.

## Reading the tables

This section is about the tables of a finished replay, which are plain Parquet. For those of a running query, see
[below](#the-table-of-a-live-query). A kind's folder is one table for every Parquet reader. The kinds have different columns, so a query over all of them must
match columns by name:

```sql
-- DuckDB
SELECT * FROM 'out/tables/kind=EXPIRED/*.parquet';
SELECT * FROM read_parquet('out/tables/kind=*/*.parquet', hive_partitioning = true, union_by_name = true);
```

In Spark, set the option `mergeSchema` to true. In Python, these functions also sort the rows and drop repeats:

```python
import magnetar

expired = magnetar.read_rows("out", "EXPIRED").to_pandas()  # without a kind: all rows
entries = magnetar.read_entries("out", "persistent://shop/day/orders").to_pandas()  # with payloads
```

## The table of a live query

`magnetar run` writes all kinds of rows into one [Delta Lake](https://delta.io) table, `STORE/tables`, partitioned by `kind` and
`date`, the day (UTC) on which the rows were written. Its other columns are those below and `batch`, the micro-batch. Each
micro-batch is one transaction: a reader sees all its rows or none. Many tools read it while the query runs, on any machine:

```python
from deltalake import DeltaTable

table = DeltaTable("store/tables")
expired = table.to_pandas(filters=[("kind", "=", "EXPIRED"), ("date", ">=", "2026-11-01")])
```

```python
import polars

rows = polars.scan_delta("store/tables").filter(polars.col("kind") == "EVICTED")
print(rows.group_by("topic", "subscription").agg(polars.col("entries").sum()).collect())
```

```sql
-- DuckDB with its extension delta. Without it, in Python: `tables = DeltaTable("store/tables").to_pyarrow_dataset()`
SELECT topic, cause, count(*) FROM delta_scan('store/tables') WHERE kind = 'LEDGER_DELETED' GROUP BY ALL;
```

In Spark, `spark.read.format("delta").load("store/tables")` needs the package `io.delta:delta-spark`. `magnetar.read_rows("store")` reads this
table, too.

Every 64 micro-batches with rows, the query compacts the table in the background, so that it has few files: one per kind and day,
or one per 64 MiB. `--keep-outputs 30d` removes rows on the day when they are older than that. Files that were replaced or
removed stay for an hour, for readers that opened the table before. `magnetar compact STORE` does the same at once. Only files with the names
that the query and its compaction give are deleted; a table does not begin in a folder that has others.

## The printed table

`magnetar replay` prints one row per topic and one per subscription, 40 at most. On a terminal of fewer than 130 columns,
columns that hold nothing but zeros are left out. With `--json` it prints the same numbers as JSON, of all topics.

| column | of a topic | of a subscription |
|---|---|---|
| entries | the entries that the ledgers hold | |
| duplicates | messages that deduplication dropped | |
| unknown | messages that deduplication could not judge yet; the client resends them | |
| dispatched, acked | | the entries that were delivered (redeliveries count) and acknowledged |
| expired, evicted | | the entries that TTL and a backlog quota removed from the backlog |
| trimmed | the entries of deleted ledgers | |
| backlog | the largest backlog of its subscriptions | the entries that are not acknowledged (`msgBacklog` in stats) |
| storage | the size of the ledgers | the size of the backlog |
| mark-delete | | the last position up to which everything is acknowledged |

The line below the table counts the records of the log. Those without a topic are copied to every ingress partition, and count
once. Then "What happened, and why" says what was quarantined, refused, closed, dropped, expired, evicted and trimmed, the most
frequent first: up to six sentences for each kind of row. The tables have every single case.

## Columns of every row

{identity}
`partition`, `offset` and `ordinal` identify a row. A micro-batch that Spark runs again after a failure writes the same
files again, so tables have no repeats. Where rows can repeat (in Kafka), drop them by these three. All times are in
milliseconds since the epoch, all sizes in bytes.

## The response topic

`magnetar run --responses kafka://HOST:PORT/TOPIC` sends the answers to clients to a Kafka topic: one Kafka record for each row
of a kind marked "answer" whose `connection` is not empty. A missing topic is created with as many partitions as the ingress
has, and without retention. Give each query a response topic of its own: one that holds records of another query is refused.

| part | content |
|---|---|
| key | The client's connection, in UTF-8. |
| partition | Kafka's default choice for the key (murmur2): all answers to a connection are in one Kafka partition. |
| timestamp | The time of sending. |
| header `magnetar.partition` | The row's ingress partition, as decimal text. |
| header `magnetar.offset` | The row's offset, as decimal text. |
| header `magnetar.ordinal` | The row's ordinal, as decimal text. |
| header `magnetar.batch` | The micro-batch that sent the record, as decimal text. |
| value | A JSON object: `kind`, and the row's other columns that are not null. `fields` is an object, not text. |

For the PRODUCER_SUCCESS below, the value is

```json
{value}
```

* **A MESSAGE** also has the entry: `metadata`, an object with the fields of [MessageMetadata](commands.md#messagemetadata), and
  `payload` in base64, as it was published. The payload of a batch is therefore Pulsar's encoding of a batch.
* **An ADMIN_RESPONSE** to a call that asks for an entry has them, too.
* **A SEND_RECEIPT** has neither. The client knows what it sent.
* **A message in the short form gets no answer**, because it has no connection. Its SEND_RECEIPT or SEND_ERROR is only in the
  tables. A client that needs receipts creates a producer with [PRODUCER](commands.md#producer) and publishes with
  [SEND](commands.md#send). An [ADMIN](commands.md#admin) command without a `connection` gets no answer either.
* **Other kinds are not sent**: EXPIRED, EVICTED, TOPIC_EVENT and the like are only in the tables. Quarantined records have
  [a topic of their own](quality.md#dead-letters).
* **Order.** A connection gets the answers about the topics of one ingress partition in the order in which the broker gave them.
  Answers from different ingress partitions interleave in any order. An ADMIN command for a namespace is answered once by each
  ingress partition.
* **Repeats.** After a failure a micro-batch is sent again, to the same Kafka partitions, before any later one. So drop a record
  if its three identity headers were seen before in the same `magnetar.batch`, or if its batch is earlier than the last one seen
  from its ingress partition in the same Kafka partition. It is enough to remember the headers of one micro-batch. A query with a
  new checkpoint counts batches from 0 again.

This prints each message that a connection received, once, and needs only kafka-python:

```python
import base64, json
from kafka import KafkaConsumer

consumer = KafkaConsumer(
    "responses",
    bootstrap_servers="127.0.0.1:9092",
    auto_offset_reset="earliest",
    enable_auto_commit=False,
    consumer_timeout_ms=5000,
)
latest = {{}}  # Kafka partition and ingress partition → the last micro-batch, and the rows seen of it
for record in consumer:
    headers = {{name: int(text) for name, text in record.headers}}
    batch, row = headers["magnetar.batch"], (headers["magnetar.offset"], headers["magnetar.ordinal"])
    source = record.partition, headers["magnetar.partition"]
    last, seen = latest.get(source, (-1, set()))
    if batch > last:
        last, seen = latest[source] = batch, set()
    if batch < last or row in seen:
        continue  # a repeat
    seen.add(row)
    answer = json.loads(record.value)
    if answer["kind"] == "MESSAGE":
        payload = base64.b64decode(answer["payload"])
        print(answer["connection"], answer["ledger_id"], answer["entry_id"], payload.decode())
```

In Python with Magnetar installed, `sinks.kafka.read_responses` does the same. It ends with an error if Kafka deletes rows before they are
read, which the above skips.

## Kinds
"""


def outputs() -> str:
    """``docs/reference/outputs.md``: every kind of output row and its columns."""
    common = [*IDENTITY, "clock", "kind"]
    identity = table(
        ("column", "type", "unit", "description"),
        ((f"`{name}`", str(field.type), _unit(field), _doc(field)) for name in common for field in [OUTPUT.field(name)]),
    )  # fmt: skip
    contents = table(
        ("kind", "", "what it means"),
        (
            (
                f"[{kind}](#{kind.lower()})",
                "answer" if kind in RESPONSES else "",
                first_sentence(effect),
            )
            for effect, kind in KINDS.items()
        ),
    )
    page = [NOTE, OUTPUTS.format(contents=contents, identity=identity, value=_response("PRODUCER_SUCCESS"))]
    page += [_kind(effect, kind) for effect, kind in KINDS.items()]
    return "".join(page)


def filled(effect: type[effects.Effect], column: str) -> str:
    """Whether a column of a kind's table is filled: always, not always, or never."""
    hint = typing.get_type_hints(effect)[column]
    if hint is type(None):
        return "never"
    return "not always" if type(None) in typing.get_args(hint) else "always"


def _kind(effect: type[effects.Effect], kind: str) -> str:
    described, shown = descriptions(effect), example.rows()[kind]
    rows = []
    for name in effect._fields:
        if name not in TABLES[kind].names:
            continue
        field = OUTPUT.field(name)
        rows.append(
            (
                f"`{name}`",
                str(field.type).replace("list<item: int64>", "list of int64"),
                _unit(field),
                filled(effect, name),
                described.get(name, _doc(field)),
                _code(shown.row[name]),
            )
        )
    left_out = [f"`{name}`" for name in effect._fields if name not in TABLES[kind].names]
    note = f"\nThe {' and '.join(left_out)} of the entry are in the ledger store.\n" if left_out else ""
    where = (
        "The example comes from the trigger"
        if shown.record is None
        else f"The example comes from line {shown.record}"
        + (" of example-transactions.jsonl" if shown.log == example.TRANSACTIONS else "")
    )
    identity = ", ".join(f"{name} {shown.row[name]}" for name in (*IDENTITY, "clock"))
    answer = " The row goes to the client's connection." if kind in RESPONSES else ""
    return (
        f"\n### {kind}\n\n{doc(effect)}{answer}\n\n"
        f"{table(('column', 'type', 'unit', 'filled', 'description', 'example'), rows)}{note}\n{where}: {identity}.\n"
        f"{_structures(effect)}"
    )  # fmt: skip


def _structures(effect: type[effects.Effect]) -> str:
    """The structure of an effect's ``fields``, and those that are parts of it."""
    hint = typing.get_type_hints(effect).get("fields")
    if hint is None:
        return ""
    (outer,) = (each for each in (typing.get_args(hint) or (hint,)) if each is not type(None))
    parts = [f"\n`fields`: {_lower(doc(outer))}\n\n{_structure(outer)}"]
    for name, inner in vars(effect_fields).items():
        if any(f"[{name}]" in field.type for field in fields(outer)):
            parts.append(f"\n#### {name}\n\n{doc(inner)}\n\n{_structure(inner)}")
    return "".join(parts)


def _structure(struct: type[msgspec.Struct]) -> str:
    return table(
        ("field", "type", "present", "description"),
        (
            (f"`{f.name}`", f.type, "always" if f.default == "required" else "not always", f.description)
            for f in fields(struct)
        ),
    )


def _response(kind: str) -> str:
    """The value of an example row in the response topic."""
    row = example.rows()[kind].row
    value = {name: value for name, value in row.items() if value is not None} | {"kind": kind}
    ordered = {name: value[name] for name in OUTPUT.names if name in value}
    return msgspec.json.encode(ordered | {"fields": msgspec.Raw(row["fields"].encode())}).decode()


# -- settings -----------------------------------------------------------------------------------------------------

SETTINGS = """\
# Broker settings

The command [BROKER_CONFIG](commands.md#broker_config) gives settings in its field `settings`, with the names of Pulsar's
`broker.conf`. The defaults are those of its `profile`, `4.x` or `2.x`; where they differ, the table shows **both**, and
[profiles.md](profiles.md) says why. Policies of a namespace or a topic ([admin calls](commands.md#admin-calls)) take
precedence over the settings that are their defaults.

A number outside its range, an unknown name, or a text of more than {longest} characters puts the whole BROKER_CONFIG into
quarantine (rule `broker_config`), with a cause that names the setting.
"""


def settings() -> str:
    """``docs/reference/settings.md``: the broker's settings and their defaults by profile."""
    titles = sections(ServiceConfiguration)
    page, rows = [NOTE, SETTINGS.format(longest=f"{LONGEST:,}")], list[Sequence[str]]()
    heads = ("setting", "range", "unit", *PROFILES, "description")
    for setting in fields(ServiceConfiguration):
        if setting.name in titles:
            if rows:
                page.append(table(heads, rows))
            title, _, text = titles[setting.name].partition(": ")
            page.append(f"\n## {title}\n\n{text + chr(10) * 2 if text else ''}")
            rows = []
        if setting.name == "profile":
            continue
        default = getattr(ServiceConfiguration(), setting.name)
        values = [changes.get(setting.name, default) for changes in PROFILES.values()]
        texts = [_shown(value) for value in values]
        if len(set(texts)) > 1:
            texts = [f"**{text}**" for text in texts]
        allowed = str(RANGES.get(setting.name, ""))
        rows.append((f"`{setting.name}`", allowed, setting.unit, *texts, setting.description))
    page.append(table(heads, rows))
    releases = [RELEASES[line] for line in LINES]
    page.append("\n## Settings without effect\n\n"
                f"Every other setting that a broker of Pulsar {', '.join(releases[:-1])} or {releases[-1]} has, by the class or in "
                "`broker.conf` and `standalone.conf`, is accepted and has no effect here: caches, storage, TLS, load balancing and "
                "the like. So is any name that begins with "
                + ", ".join(f"`{each}`" for each in PASSED_ON[:-1]) + f" or `{PASSED_ON[-1]}`. "
                "Any other name is refused.\n\n"
                "`magnetar serve` refuses the settings among them that protect a broker ("
                + ", ".join(f"`{name}`" for name in (*OPTIONS, *NOTHING))
                + "), unless its [options](../operate/security.md#clients-of-magnetar-serve) do what they ask for. With "
                "`authorizationEnabled`, those of [authorization](../operate/security.md#authorization) have an effect in the server: "
                "`superUserRoles`, `authorizationAllowWildcardsMatching`, `anonymousUserRole`.\n\n"
                "Some of these settings change what a broker does unless they have a certain value. Another value is refused:\n\n")  # fmt: skip
    rows = [(f"`{name}`", f"`{allowed}`" if allowed else "empty") for name, (allowed, _) in ONLY.items()]
    page.append(table(["setting", "value"], rows))
    page.append(
        "\nThe others: " + ", ".join(f"`{name}`" for name in sorted(WITHOUT_EFFECT.difference(ONLY))) + ".\n"
    )
    return "".join(page)


def _shown(value: object) -> str:
    """A default. Of a long list, how many items it has."""
    if isinstance(value, str) and (short := abbreviated(value)) != value:
        return short
    return f"`{msgspec.json.encode(value).decode()}`"


# -- what the pages share -----------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown. Columns that are empty throughout are left out."""
    found = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    used = [place for place in range(len(heads)) if any(row[place] for row in found)]
    lines = [
        [heads[place] for place in used],
        ["---"] * len(used),
        *([row[place] for place in used] for row in found),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _fields(struct: type[msgspec.Struct]) -> str:
    return _table(fields(struct))


def _table(found: Iterable[Field]) -> str:
    return table(
        ("field", "type", "default", "unit", "description"),
        ((f"`{f.name}`", f.type, f.default, f.unit, f.description) for f in found),
    )


def _doc(column: Any) -> str:
    return str(column.metadata[b"doc"].decode())


def _unit(column: Any) -> str:
    return str(column.metadata.get(b"unit", b"").decode())


def _code(value: Any) -> str:
    if value is None:
        return ""
    text = value.decode() if isinstance(value, bytes) else str(value)
    return f"`{text}`" if text else '`""`'


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def schema() -> str:
    """``schemas/command.schema.json``."""
    return msgspec.json.format(msgspec.json.encode(command_schema()), indent=2).decode() + "\n"


def schema_of_policies() -> str:
    """``schemas/policies.schema.json``."""
    return msgspec.json.format(msgspec.json.encode(policies_schema()), indent=2).decode() + "\n"


def description_of_admin() -> str:
    """``schemas/admin.openapi.json``."""
    return msgspec.json.format(msgspec.json.encode(openapi.document()), indent=1).decode() + "\n"


UPGRADES = """# What an upgrade changes

The rules and defaults that differ from one release line to the next, as [settings](../reference/settings.md). `magnetar profiles FROM TO` prints
this for any two, and `magnetar whatif LOG --profile TO` says [which of them matter to your traffic](../guide/whatif.md#what-an-upgrade-changes).
[What other Pulsar versions do differently](versions.md#1-how-near-each-profile-comes) has the rules in full, and [profiles](../reference/profiles.md) what each profile is.

A change may be in either direction of what you notice: the description says which value does what. The last column has the rule and recordings
of real brokers, each of which differs from its own profile if the setting has the other value.

A setting beats its profile: to keep one rule of an older line, set it.

"""


def upgrades() -> str:
    """``docs/rules/upgrades.md``: what changes from a release line to the next."""
    page, texts = [NOTE, UPGRADES], descriptions(ServiceConfiguration)
    for before, after in pairwise(LINES):
        rows = [
            (
                f"`{name}`",
                *_both(values),
                PROFILE_RULES[name].notices,
                texts[name],
                _shown_by(PROFILE_RULES[name]),
            )
            for name, values in changes(before, after).items()
        ]
        heads = ("setting", before, after, "what you notice", "description", "shown by")
        page.append(f"\n## From {before} to {after}\n\n{table(heads, rows)}")
    return "".join(page)


def _both(values: tuple[object, object]) -> Iterator[str]:
    """Both values of a setting. Of a list, what only one has."""
    if (lists := entries(*values)) is None:
        yield from map(_shown, values)
        return
    for count, own in ((lists.before, lists.gone), (lists.after, lists.new)):
        only = f", only here: {', '.join(f'`{each}`' for each in own)}" if own else ""
        yield f"{count} entries{only}" if count else "none"


def _shown_by(rule: ProfileRule) -> str:
    """The rule and its recordings, with links."""
    return re.sub(r"\b[A-D]\d+[ab]?\b", lambda id_: f"[{id_[0]}](versions.md#{id_[0]})", rule.shown_by)


FILES: dict[str, Callable[[], str]] = {
    "docs/rules/upgrades.md": upgrades,
    "docs/reference/commands.md": commands,
    "docs/reference/outputs.md": outputs,
    "docs/reference/settings.md": settings,
    "docs/reference/support.md": support,
    "docs/idea.svg": picture,
    "schemas/command.schema.json": schema,
    "schemas/policies.schema.json": schema_of_policies,
    "schemas/admin.openapi.json": description_of_admin,
}
"""File → what is in it."""


if __name__ == "__main__":
    for file, write in FILES.items():
        (ROOT / file).write_text(write())
