"""States of brokers outside of a query: saved, moved to other partitions, as text."""
