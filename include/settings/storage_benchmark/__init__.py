"""The block `benchmarks:` of the configuration."""
