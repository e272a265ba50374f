"""The only writer: executor, journal, recovery, reservations."""
