"""The only writer: plans become changes, and survive being killed at any moment.

`executor` does plans, `recovery` finishes what was cut off, `reservations` and `stuck` are read by
those who only look: so nothing is imported here.
"""
