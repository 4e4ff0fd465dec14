#pragma once
// Flow arrows: events of phases s, t and f that share an `id`. See Note [Flows] in flow_links.cpp.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "traceap/table/event_table.hpp"

namespace traceap {

/// Of arrows from launch calls to GPU events.
bool is_launch_category(std::string_view category);
/// The value of the event's own member `id` (not of `args`).
std::optional<std::int64_t> flow_id(const EventTable& table, Row row);

/// Takes flows out of `kept` (by row) that start or end where an event starts which is not kept,
/// and no event of their kind that is. O(n log n).
void drop_loose_flows(const EventTable& table, std::vector<std::uint8_t>& kept);

}  // namespace traceap
