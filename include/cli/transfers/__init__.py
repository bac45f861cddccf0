"""Commands for transfers between sites."""
