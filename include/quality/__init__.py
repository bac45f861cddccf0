"""The quality gate: suites that judge a build, its index and its night before anything leads to it."""
