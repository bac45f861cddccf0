"""Commands of the lab, which `nightshift` has where the lab is installed."""
