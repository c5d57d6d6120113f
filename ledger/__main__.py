"""`python -m ledger migrate`."""

import sys

from ledger import cli

USAGE = "usage: python -m ledger migrate\n"


def main(arguments: list[str]) -> None:
    """Run one command."""
    if arguments != ["migrate"]:
        sys.stderr.write(USAGE)
        raise SystemExit(cli.FAILED)
    cli.migrate()


if __name__ == "__main__":
    main(sys.argv[1:])
