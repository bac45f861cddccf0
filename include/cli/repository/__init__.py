"""The commands of `nightshift repo`, by what they do; `include/cli/repo.py` puts them together."""
