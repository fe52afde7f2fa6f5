"""Sinks: where the output rows of the query go. The contract is `sinks.base.Sink`.

* `tables`: every row, in Parquet, one table a kind
* `ledger_store`: the entries, with a reader for the broker (`segments`, `entry_file`, `runs`, `ledger_reader`, `cache`)
* `kafka`: answers to clients, in a Kafka topic
* `quarantine`: records that are no command

Shared: `storage` (files on any pyarrow filesystem, published whole), `paths` (names in paths), `parquet` (encoding).
"""
