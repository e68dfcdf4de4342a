"""The fast mode that this small server has of its own."""
