"""`python -m deploy.slurm`."""

import sys

from deploy.slurm.cli import main

sys.exit(main())
