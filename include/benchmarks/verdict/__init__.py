"""What a campaign's figures mean: compared with a baseline, with requirements, and with the price of the target."""
