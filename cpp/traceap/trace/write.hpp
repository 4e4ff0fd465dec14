#pragma once
// EventTable to a trace file that loads to an equal table.

#include <string>

#include "traceap/table/event_table.hpp"

namespace traceap {

/// Writes Chrome-trace JSON; gzip when the name ends in ".gz". Throws Error when the file can't be
/// written.
void write_trace(const EventTable& table, const std::string& path);
/// The JSON text.
std::string trace_json(const EventTable& table);

}  // namespace traceap
