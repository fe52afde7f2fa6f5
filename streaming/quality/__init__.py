"""Quality gates: apply the rules of `schemas/expectations` on the hot path and in Great Expectations (docs/reference/quality.md)."""
