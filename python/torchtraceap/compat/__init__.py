"""Tables and scripts as other tools have them: TraceLens, replay of single operators."""
