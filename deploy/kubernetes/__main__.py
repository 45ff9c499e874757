"""`python -m deploy.kubernetes`."""

import sys

from deploy.kubernetes.cli import main

sys.exit(main())
