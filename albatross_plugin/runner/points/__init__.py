"""Interception points: one module each. ``install`` puts a point in force in a module of the Runner, or raises Missing."""
