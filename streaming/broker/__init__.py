"""The core: Apache Pulsar's broker as a pure function of its commands."""
