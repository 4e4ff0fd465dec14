namespace traceap {}  // namespace traceap
