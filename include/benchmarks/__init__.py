"""Storage benchmark campaigns: targets, runners, scenarios, campaigns, verdicts and reports."""
