"""Topics that store their messages: publishing, subscriptions, deduplication, expiry, quotas, trimming, life cycle."""
