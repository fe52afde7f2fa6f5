"""The same log under other policies, another version, other clients."""
