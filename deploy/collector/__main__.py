"""`python -m deploy.collector`: build OpenTelemetry's collector, once per user."""

import sys

from deploy.collector.programs import set_up
from deploy.local.errors import StackError


def main() -> int:
    try:
        print(f"collector {set_up()}")
    except StackError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
