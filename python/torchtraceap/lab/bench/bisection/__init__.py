"""Which revision it was: a line of commits or versions, tested against both ends."""
