"""`python -m deploy.suites`: register the built-in suites that are missing; `write FOLDER`: write their files."""

import sys
from pathlib import Path

from deploy.suites.registering import register, write
from ops.connection import find_connection
from ops.errors import RefusedByPlatform, Unreachable
from shared.messaging.kafka import KafkaFailed

DONE, REFUSED, USAGE, UNREACHABLE = 0, 1, 2, 3


def main(arguments: list[str]) -> int:
    match arguments:
        case []:
            return _register()
        case ["write", folder]:
            print("\n".join(map(str, write(Path(folder)))))
            return DONE
        case _:
            print(__doc__, file=sys.stderr)
            return USAGE


def _register() -> int:
    try:
        register(find_connection(), lambda line: print(line, flush=True))
    except RefusedByPlatform as error:
        print(error, file=sys.stderr)
        return REFUSED
    except (Unreachable, KafkaFailed) as error:
        print(error, file=sys.stderr)
        return UNREACHABLE
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
