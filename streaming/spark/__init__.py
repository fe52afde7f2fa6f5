"""The adapter to Spark, which reads records, keeps the broker's state, and passes its effects to the sinks."""
