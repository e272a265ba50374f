"""May I, and on which GPU: answers on values."""
