"""Child processes: what they get, how they start, report and end, and how those that outlive us are found again."""
