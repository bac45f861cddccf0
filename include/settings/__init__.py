"""The one configuration file of a deployment: read, validated, and the connections that carry its secrets."""
