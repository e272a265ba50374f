"""A simulated GPU host behind the same door."""
