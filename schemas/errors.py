"""What all errors have in common whose text tells a user what is wrong and what to do."""


class MagnetarError(Exception):
    """Magnetar can't do what was asked. The text says why, and mostly what to do.

    Each error has a class of its own below this one, which is also a class of Python's: `LogError`, for instance, is a `ValueError`.
    A path at which there is nothing is Python's own `FileNotFoundError`.
    """
