"""Files of distant sites, read over HTTP with as few round trips as a job allows."""
