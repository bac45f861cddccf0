"""What a tree is read from: directories, tarballs and zip archives, with owners and rules."""
