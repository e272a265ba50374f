"""Reading a host, once, into one frozen value."""
