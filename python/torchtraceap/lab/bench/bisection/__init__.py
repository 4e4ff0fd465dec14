"""Search for the revision that changed a program's speed, tested against both ends of the line."""
