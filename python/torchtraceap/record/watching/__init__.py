"""The parts of `watch`: what it costs, keeps and finds changed, and who examines a trace."""
