"""A continuous-batching RWKV-7 engine that plugs into FastAPI runners through entry points."""

__version__ = "0.1.0"
