"""`magnetar run` as a Spark application, for spark-submit: README.md says how."""

import sys

from streaming.cli.app import app

if __name__ == "__main__":
    app(["run", *sys.argv[1:]])
