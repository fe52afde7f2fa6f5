"""The contracts: what a command record, an output row and a stored entry look like. Nothing here acts."""
