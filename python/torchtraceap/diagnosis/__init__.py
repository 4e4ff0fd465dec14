"""One diagnosis of rules and scorers: findings, verdicts, the leading finding."""
