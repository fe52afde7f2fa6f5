"""Mutation testing of the core: which small changes of ``streaming/broker`` do its tests notice? ``make mutants``."""
