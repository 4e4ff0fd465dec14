"""Methods that learned scorers have to beat, all by one protocol (`protocol.Method`)."""
