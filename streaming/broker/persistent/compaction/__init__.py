"""Topic compaction: the last message of each key (docs/rules/compaction.md)."""
