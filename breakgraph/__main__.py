"""``python -m breakgraph`` is the ``breakgraph`` command."""

import sys

from breakgraph.cli import main

sys.exit(main())
