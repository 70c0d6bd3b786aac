"""What keeps a session going: goals, schedules, harness, compaction, notices."""
