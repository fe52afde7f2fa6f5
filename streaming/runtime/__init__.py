"""What Magnetar needs on a machine: a Java, jars, and a cache for them."""
