"""Running a plan: step by step, kept in a folder, resumable after any kill."""
