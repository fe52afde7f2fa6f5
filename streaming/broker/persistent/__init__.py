"""Topics that store their messages, from creation to publishing and deduplication."""
