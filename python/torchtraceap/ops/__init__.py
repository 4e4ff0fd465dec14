"""What operators, kernels and devices are, and what they cost: models, durations, devices."""
