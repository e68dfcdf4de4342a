"""The checks of the built files need the folder that they lie in; the tox environment ``package`` builds them and names it."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("ALBATROSS_DIST") else ["test_dist.py"]
