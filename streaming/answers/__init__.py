"""Answers about a finished replay or a live query: what happened to a message, and why a subscription gets nothing.

Each answer is one function with a typed result. `to_json` gives the JSON that the commands print, and each result has its
rows as an Arrow table.
"""
