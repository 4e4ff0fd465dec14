"""Performance contracts: limits on what a trace may hold, checked in tests and on stored traces."""
