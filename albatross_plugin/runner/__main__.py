"""``python -m albatross_plugin.runner``: start an unmodified RWKV-Runner with the plugins that are installed."""

from __future__ import annotations

import sys

from albatross_plugin.runner.launch import main

if __name__ == "__main__":
    sys.exit(main())
