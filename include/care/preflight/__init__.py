"""Whether a night could run now: everything that it needs, looked at beforehand."""
