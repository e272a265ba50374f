"""The platforms that run guests."""
