"""A repository is read and judged; lost objects are restored."""
