"""Read-only facts about tensor programs: how accesses walk memory, and what that costs."""
