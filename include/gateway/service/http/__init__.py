"""The service's HTTP side: routes, requests, replies, signatures and limits."""
