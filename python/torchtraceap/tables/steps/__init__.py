"""Tables of steps, and of what decides how long a step takes."""
