"""The folder for what is fetched or built once per machine."""

from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """Magnetar's folder in the user's cache: `$XDG_CACHE_HOME/magnetar` if that is set, else the platform's own place
    (`~/.cache/magnetar` on Linux, `~/Library/Caches/magnetar` on macOS). It may not exist yet."""
    return platformdirs.user_cache_path("magnetar", appauthor=False)
