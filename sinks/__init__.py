"""Sinks store or send the output rows of the query. They implement `sinks.base.Sink`.

* `tables`: every row, in Parquet, one table per kind
* `ledger_store`: the entries, with a reader for the broker (`segments`, `entry_file`, `runs`, `ledger_reader`, `cache`)
* `kafka`: responses to clients, in a Kafka topic
* `quarantine`: records that were refused

`begun` tells a micro-batch that is repeated from another one with its number.

Shared modules: `storage` (atomic files on any pyarrow filesystem), `paths` (names in paths), `parquet` (encoding).
"""
