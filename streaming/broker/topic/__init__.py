"""What persistent and non-persistent topics share."""
