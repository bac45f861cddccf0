"""The service's REST interface."""
