"""The engine: requests in, tokens out. Nothing in here imports torch."""
