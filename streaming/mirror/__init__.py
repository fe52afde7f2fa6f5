"""A twin of a live cluster: its admin API and its entries become a command log."""
