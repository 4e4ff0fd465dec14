"""Reports for people: terminal and HTML."""
