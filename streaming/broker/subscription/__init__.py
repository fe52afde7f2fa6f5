"""What every subscription has: its consumers, and what its dispatcher works on."""
