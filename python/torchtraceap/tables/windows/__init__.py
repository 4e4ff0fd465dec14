"""Windows of equal time, and the events and features of each."""
