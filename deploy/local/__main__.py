import sys

from deploy.local.cli import main

if __name__ == "__main__":
    sys.exit(main())
