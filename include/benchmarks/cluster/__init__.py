"""The Ceph cluster below a target: what it reports, and what is stopped on its servers."""
