"""What is measured, against what, in one run. Ratios are to be trusted, seconds are not."""
