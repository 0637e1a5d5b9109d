"""`python -m sluicegate.cli`."""

import sys

from . import main

sys.exit(main())
