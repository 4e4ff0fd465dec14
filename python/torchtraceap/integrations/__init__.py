"""Recording from inside of training libraries, and for as long as a training runs."""
