"""``python -m magnetar_double``."""

from magnetar_double import main

main()
