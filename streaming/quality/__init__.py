"""Quality gates: the rules of `schemas/expectations`, on the hot path and in Great Expectations. See docs/quality.md."""
