"""Say something to the person at the terminal; standard output is for what was asked for."""

import sys


def report(message: str) -> None:
    print(f"deploy.local: {message}", file=sys.stderr, flush=True)
