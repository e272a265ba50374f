"""Pure planning: from a reading of the host and a request to a list of steps."""
