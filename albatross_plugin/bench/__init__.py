"""Benchmarks that run against a server or an engine, outside the test suite."""
