"""Sources of trees: directories, tarballs and zip archives, with owners and rules."""
