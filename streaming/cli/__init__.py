"""The `magnetar` command, one module per command group. Nothing imports this package.

A module imports only typer at its top; the body of a command imports what the command needs, so that `magnetar --help`
answers at once.
"""
