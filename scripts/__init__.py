"""Shipped with the wheel; read by `importlib.resources`."""
