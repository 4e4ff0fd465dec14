#pragma once
// EventTable to a trace file that loads to an equal table.

#include <string>
#include <vector>

#include "traceap/table/event_table.hpp"

namespace traceap {

/// Writes Chrome-trace JSON; gzip when the name ends in ".gz". `more_events` are JSON objects that
/// join the table's own, such as tracks drawn over them. Throws Error when the file can't be
/// written.
void write_trace(const EventTable& table, const std::string& path,
                 const std::vector<std::string>& more_events = {});
/// The JSON text.
std::string trace_json(const EventTable& table);

}  // namespace traceap
