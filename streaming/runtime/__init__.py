"""What Magnetar stands on: a Java, the jars, a Spark session and a local Kafka."""
