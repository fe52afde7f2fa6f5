"""The live page: a running query, its folders, or a finished replay in a browser."""
