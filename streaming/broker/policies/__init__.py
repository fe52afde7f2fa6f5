"""Policies and the checks that enforce them: TTL and backlog quotas."""
