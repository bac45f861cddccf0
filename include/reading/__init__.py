"""Files of distant sites, read over HTTP or xroot with as few round trips as a job allows."""
