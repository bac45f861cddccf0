"""What is measured: presets as data, and the plan that a preset becomes on a target."""
