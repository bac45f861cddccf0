"""The Ceph cluster below a target: what it reports, what is stopped on its servers, and pools for a run."""
