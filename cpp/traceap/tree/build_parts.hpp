#pragma once
// The parts of build_tree, in the order in which they run. Private to tree/.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"
#include "traceap/tree/name_traits.hpp"

namespace traceap {

/// A cpu_op that carries a sequence number.
struct SequencedOp {
  Row row;
  std::int64_t sequence;
  std::int64_t forward_thread;  ///< "Fwd thread id"; 0 if absent
};

/// What the parts share beyond the tree itself.
struct TreeContext {
  const EventTable& table;
  TreeOptions options;                 ///< within sane limits
  std::vector<NameTraits> traits;      ///< per StringId
  std::vector<bool> in_engine;         ///< per row: below a node that the autograd engine runs
  std::vector<SequencedOp> sequenced;  ///< in row order

  NameTraits traits_of(Row row) const { return traits[table.name[row]]; }
  bool has_trait(Row row, NameTrait trait) const { return (traits_of(row) & trait) != 0; }
};

/// An ArgReader that only asks about events whose text holds the key at all: finding a text is many
/// times faster than finding a key's place, and most events don't have the keys of this layer.
class RareKey {
 public:
  RareKey(const EventTable& table, std::string_view key);

  /// Does any event hold the key?
  bool occurs() const { return reader_.has_value(); }
  bool has(Row row) const { return may_have(row) && reader_->has(row); }
  std::optional<std::int64_t> integer(Row row) const {
    return may_have(row) ? reader_->integer(row) : std::nullopt;
  }
  std::optional<std::string> text(Row row) const {
    return may_have(row) ? reader_->text(row) : std::nullopt;
  }

 private:
  bool may_have(Row row) const { return reader_ && mentions_[table_.args.template_id[row]]; }

  const EventTable& table_;
  std::vector<bool> mentions_;  ///< per template
  std::optional<ArgReader> reader_;
};

/// Text before number: which number a track has may depend on the order of events in the file.
bool is_named_before(const Track& a, const Track& b);

/// api.
void classify_api_rows(const TreeContext& context, EventTree& tree);
/// host_rows, host_offsets, host_position, host_tracks.
void group_host_rows(const TreeContext& context, EventTree& tree);
/// parent, depth, subtree_end, op of host rows.
void nest_host_rows(const TreeContext& context, EventTree& tree);
/// phase of host rows as far as names and ancestors say; context.in_engine.
void name_phases(TreeContext& context, EventTree& tree);
/// gpu_rows, gpu_class.
void classify_gpu_rows(const TreeContext& context, EventTree& tree);
/// launch, linked_gpu_rows by correlation.
void link_by_correlation(const TreeContext& context, EventTree& tree);
/// launch of GPU events without a correlation id, by flow events.
void link_by_flows(const TreeContext& context, EventTree& tree);
/// launched_offsets, launched_rows.
void invert_launches(const TreeContext& context, EventTree& tree);
/// copy_direction, host_memory.
void classify_copies(const TreeContext& context, EventTree& tree);
/// op of GPU events.
void assign_gpu_ops(const TreeContext& context, EventTree& tree);
/// context.sequenced.
void read_sequence_numbers(TreeContext& context, const EventTree& tree);
/// forward.
void link_forward(const TreeContext& context, EventTree& tree);
/// main_track.
void choose_main_track(const TreeContext& context, EventTree& tree);
/// steps from ProfilerStep#N.
void collect_steps(const TreeContext& context, EventTree& tree);
/// steps from a repeated pattern, where there are none.
void infer_steps(const TreeContext& context, EventTree& tree);
/// profiled.
void measure_profiled(const TreeContext& context, EventTree& tree);
/// phase of what names left open, and of GPU events.
void place_phases(const TreeContext& context, EventTree& tree);
/// streams, stream_of.
void group_streams(const TreeContext& context, EventTree& tree);
/// launch_delay_correction_ns.
void compare_clocks(const TreeContext& context, EventTree& tree);

/// step.
void assign_steps(const TreeContext& context, EventTree& tree);
/// warm_up.
void find_warm_up(const TreeContext& context, EventTree& tree);
/// workload.
void describe_workload(const TreeContext& context, EventTree& tree);
/// recording.
void judge_recording(const TreeContext& context, EventTree& tree);

}  // namespace traceap
