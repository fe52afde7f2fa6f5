"""What periodic checks remove: expired messages, backlogs over their quota, ledgers, inactive subscriptions."""
