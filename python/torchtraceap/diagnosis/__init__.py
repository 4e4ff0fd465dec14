"""Rules and scorers become one diagnosis: findings, verdicts, what leads."""
