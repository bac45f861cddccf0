"""Whether a night could run now: checks of everything that it needs."""
