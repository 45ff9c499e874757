"""`python -m deploy.prometheus`."""

import sys

from deploy.prometheus.cli import main

sys.exit(main())
