#include "traceap/tree/flows.hpp"

#include <algorithm>
#include <string>
#include <tuple>

#include "traceap/base/interrupt.hpp"
#include "traceap/table/json_text.hpp"

namespace traceap {
namespace {

/// A place on a track where events start. Arrows of launches belong to calls and GPU events.
struct Place {
  TrackId track;
  std::int64_t ts_ns;
  bool of_launch;

  auto key() const { return std::tie(track, ts_ns, of_launch); }
};
bool operator<(const Place& a, const Place& b) { return a.key() < b.key(); }

/// Where events start that are kept, and where such as are not.
class Places {
 public:
  Places(const EventTable& table, const std::vector<std::uint8_t>& kept) : table_(table) {
    for (Row row = 0; row < table.size(); ++row) {
      poll_interrupt();
      const EventKind kind = table.kind[row];
      if (!table.is_complete(row) || !(is_host(kind) || is_gpu(kind))) continue;
      auto& places = kept[row] != 0 ? kept_ : gone_;
      places.push_back({table.track[row], table.ts_ns[row], false});
      if (is_api_call(kind) || is_gpu(kind)) {
        places.push_back({table.track[row], table.ts_ns[row], true});
      }
    }
    std::sort(kept_.begin(), kept_.end());
    std::sort(gone_.begin(), gone_.end());
  }

  bool any_gone() const { return !gone_.empty(); }
  bool is_loose(Row flow) const {
    const Place place{table_.track[flow], table_.ts_ns[flow],
                      is_launch_category(table_.category_of(flow))};
    return std::binary_search(gone_.begin(), gone_.end(), place) &&
           !std::binary_search(kept_.begin(), kept_.end(), place);
  }

 private:
  const EventTable& table_;
  std::vector<Place> kept_, gone_;
};

}  // namespace

bool is_launch_category(std::string_view category) {
  return category == "ac2g" || category == "async_cpu_to_gpu" || category == "async";
}

std::optional<std::int64_t> flow_id(const EventTable& table, Row row) {
  std::optional<std::int64_t> id;
  for_each_member(event_json(table, row),
                  [&](std::string_view, std::string_view key, std::string_view value) {
                    if (key != "id") return;
                    if (value.size() > 1 && value.front() == '"') {
                      value = value.substr(1, value.size() - 2);
                    }
                    id = parse_int64(trim_space(value));
                  });
  return id;
}

void drop_loose_flows(const EventTable& table, std::vector<std::uint8_t>& kept) {
  const Places places(table, kept);
  if (!places.any_gone()) return;
  std::vector<std::pair<StringId, std::int64_t>> loose;
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (table.kind[row] != EventKind::kFlow || !places.is_loose(row)) continue;
    kept[row] = 0;
    if (const auto id = flow_id(table, row)) loose.emplace_back(table.category[row], *id);
  }
  std::sort(loose.begin(), loose.end());
  for (Row row = 0; row < table.size() && !loose.empty(); ++row) {
    poll_interrupt();
    if (table.kind[row] != EventKind::kFlow || kept[row] == 0) continue;
    const auto id = flow_id(table, row);
    if (!id) continue;
    const std::pair<StringId, std::int64_t> wanted{table.category[row], *id};
    if (std::binary_search(loose.begin(), loose.end(), wanted)) kept[row] = 0;
  }
}

}  // namespace traceap
