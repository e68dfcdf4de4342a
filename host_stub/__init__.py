"""A small runner with the routes of RWKV-Runner, into which plugins are hooked. Start it with ``python -m host_stub``."""
