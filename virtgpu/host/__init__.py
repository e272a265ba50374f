"""The door to the outside of one host."""
