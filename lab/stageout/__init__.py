"""`nightshift lab stageout`: users' files between the sites of the lab, from nothing to the account."""
