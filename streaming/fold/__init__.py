"""The fold: records of a log into the state of their ingress partition, and the output rows. It needs no Spark."""
