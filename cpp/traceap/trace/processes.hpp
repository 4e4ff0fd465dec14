#pragma once
// The processes of a trace that holds several ranks, each as a table of its own.

#include <vector>

#include "traceap/table/event_table.hpp"

namespace traceap {

/// The parts of a trace whose file holds the recordings of several processes, by process id as
/// text. Empty where fewer than two processes launch GPU work. Which process GPU records belong to
/// follows from correlation ids, which are a process's own, and times: see Note [Several processes]
/// in processes.cpp. Events of processes that neither launch nor run anything on a GPU go to every
/// part. The first part has the diagnostics of the whole. O(n log n).
std::vector<EventTable> split_processes(const EventTable& table);

}  // namespace traceap
