"""Frozen values of the field: addresses, GPUs, requests, slices."""
