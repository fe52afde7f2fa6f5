"""Transactions: the coordinator, and what topics and subscriptions keep of one."""
