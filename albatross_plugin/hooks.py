"""Hook implementations of the entry point ``rwkv_runner``. Heavy imports stay inside the functions."""
