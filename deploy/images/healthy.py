"""Exit code 0 if the service of this container answers 200 at /healthz; its port is in <NAME>_HTTP_PORT."""

import os
import ssl
import sys
import urllib.request

PATIENCE_SECONDS = 4


def main() -> int:
    variables = dict(os.environ)
    port = next(value for name, value in variables.items() if name.endswith("_HTTP_PORT"))
    scheme = "https" if variables.get("RETUNE_CERT_FILE") else "http"
    # Its certificate names the host that others know it by, and this is the container itself.
    context = ssl._create_unverified_context() if scheme == "https" else None  # noqa: S323, SLF001
    url = f"{scheme}://127.0.0.1:{port}/healthz"
    try:
        urllib.request.urlopen(url, timeout=PATIENCE_SECONDS, context=context).close()  # noqa: S310
    except OSError as error:  # also what urllib makes of another status
        print(error)
        return 1
    return 0


sys.exit(main())
