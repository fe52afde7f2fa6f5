"""Tools for developers of Magnetar itself."""
