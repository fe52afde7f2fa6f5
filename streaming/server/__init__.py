"""A broker that Pulsar's clients connect to: the binary protocol and the admin API on sockets, before an engine."""
