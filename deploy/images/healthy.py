"""Exit code 0 if the service of this container answers 200 at /healthz; its port is in <NAME>_HTTP_PORT."""

import os
import sys
import urllib.request

PATIENCE_SECONDS = 4


def main() -> int:
    port = next(value for name, value in os.environ.items() if name.endswith("_HTTP_PORT"))
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=PATIENCE_SECONDS).close()
    except OSError as error:  # also what urllib makes of another status
        print(error)
        return 1
    return 0


sys.exit(main())
