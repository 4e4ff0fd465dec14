#pragma once
// EventTree: links between the rows of an EventTable. Row numbers are the table's.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "traceap/base/ids.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/table/api_call.hpp"
#include "traceap/table/copy_kind.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/iteration_name.hpp"
#include "traceap/tree/recording.hpp"
#include "traceap/tree/workload.hpp"

namespace traceap {

/// Class of a GPU event by INTERFACE's definition.
enum class GpuClass : std::uint8_t { kNone = 0, kCompute, kCommunication, kMemcpy };

/// Role of a stream, by what runs there.
enum class StreamRole : std::uint8_t { kCompute, kCommunication, kCopy };

/// Part of a training step that a host row belongs to.
enum class Phase : std::uint8_t { kOther = 0, kInput, kForward, kBackward, kOptimizer };

struct Stream {
  std::int32_t device;  ///< -1 if the trace does not say
  std::int64_t stream;  ///< kNoId if the trace does not say
  StreamRole role;
  std::vector<Row> rows;  ///< its GPU events by start
};

struct Step {
  std::string name;  ///< ProfilerStep#N, or "step N" where inferred
  std::int64_t start_ns, end_ns;
  Row row;  ///< the annotation's row; kNoRow where no annotation covers it
  IterationPhase kind = IterationPhase::kUnmarked;  ///< of an iteration of a serving engine
};

/// No step holds the row.
inline constexpr std::uint32_t kNoStep = kNoRow;

/// Where warm-up ends. Before it first-call costs are to be expected, after it they are defects.
struct WarmUp {
  bool known = false;       ///< false: neither steps nor repetition tell
  bool by_steps = false;    ///< told by steps, else by the repetition of kernels
  std::int64_t end_ns = 0;  ///< host clock; start of the profile if it begins warm
};

struct TreeOptions {
  /// An event that ends after its would-be parent by at most this much is its child all the same:
  /// profilers round start and duration apart, and the clock reads take time.
  std::int64_t overlap_tolerance_ns = 1000;
  /// When the last rank of the job began to record, on a clock that the ranks share; unset where
  /// this rank is read alone. It tells a wait for a later recording from a wait for a late rank.
  std::optional<std::int64_t> last_rank_began_ns;
};

/// Invariants: parent[r] < r or kNoRow (parents precede children in row order); launch[r] and
/// op[r] are host rows. Ragged lists are offsets + values. The rules behind every link are in
/// docs/data_model.md, section EventTree.
struct EventTree {
  // Host nesting.
  std::vector<Row>
      parent;  ///< enclosing host row on the same thread; kNoRow for roots and non-host rows
  std::vector<std::uint16_t> depth;  ///< 0 for roots; saturates at 65535
  std::vector<Row> host_rows;  ///< complete host rows grouped by track, in row order inside a track
                               ///< (a pre-order)
  std::vector<std::uint32_t> host_offsets;   ///< tracks.size()+1 into host_rows
  std::vector<std::uint32_t> host_position;  ///< per row: index in host_rows; kNoRow for others
  std::vector<std::uint32_t>
      subtree_end;  ///< per index in host_rows: one past its last descendant's
  // What rows are.
  std::vector<ApiClass> api;  ///< per row: what a runtime or driver call does; kNone for others
  std::vector<CopyDirection> copy_direction;  ///< per row: of GPU events of class memcpy
  std::vector<HostMemory> host_memory;        ///< per row: the host's side of such a copy
  // Host to GPU.
  std::vector<Row> launch;  ///< GPU event -> runtime/driver call that launched it; kNoRow: orphan
  std::vector<std::uint32_t>
      launched_offsets;  ///< size()+1: row r launched launched_rows[offsets[r]..offsets[r+1])
  std::vector<Row> launched_rows;
  std::vector<Row> op;  ///< innermost cpu_op above a row (itself for a cpu_op; by launch for GPU
                        ///< events, else by External id); kNoRow if none
  std::vector<Row> forward;  ///< backward cpu_op -> its forward cpu_op by sequence number; kNoRow
  std::vector<GpuClass> gpu_class;  ///< per row; kNone for all but complete GPU events
  std::vector<Phase> phase;  ///< per row: host rows by annotation/position, GPU events by launch
  // Whole-trace structure.
  std::vector<Row> gpu_rows;         ///< all GPU events by start
  std::vector<Row> linked_gpu_rows;  ///< INTERFACE's linked: by correlation id alone, never by flow
  std::vector<Stream> streams;       ///< by (device, stream)
  std::vector<std::uint32_t> stream_of;  ///< per row: index in `streams`; kNoRow for non-GPU rows
  std::vector<Step> steps;               ///< by start; do not overlap
  bool steps_inferred = false;
  /// Per row: index of the step in which it starts, or kNoStep. A step holds its start and not its
  /// end. GPU events belong to the step that launched them, on the host's clock.
  std::vector<std::uint32_t> step;
  WarmUp warm_up;
  Workload workload;
  TrackId main_track = kNoTrack;  ///< host thread that carries steps or most launches
  /// Added to (GPU start - launch start) gives a sane launch delay: 0 unless the clocks disagree.
  std::int64_t launch_delay_correction_ns = 0;
  /// INTERFACE profiled_ns: first to last ProfilerStep (inferred ones don't count), else first to
  /// last complete event without the profiler's own `Trace` record.
  Interval profiled{0, 0};
  /// What the recording can be trusted for; every later stage asks it and nothing else.
  Recording recording;
  std::vector<TrackId> host_tracks;
  Diagnostics diagnostics;  ///< of linking; the table's own are in the table

  CopyKind copy_of(Row r) const { return {copy_direction[r], host_memory[r]}; }
  std::span<const Row> launched_by(Row r) const {
    return {launched_rows.data() + launched_offsets[r],
            launched_rows.data() + launched_offsets[r + 1]};
  }
};

/// O(n), plus O(k log k) where ids are sparse (k = events that carry them).
EventTree build_tree(const EventTable& table, const TreeOptions& options = {});

/// Start delay of a GPU event behind its launch call's start, clocks corrected; kNoId for orphans.
std::int64_t launch_delay_ns(const EventTable& table, const EventTree& tree, Row gpu_row);
/// When a GPU event was launched, on the host's clock: its own start, corrected, for orphans.
std::int64_t launch_time_ns(const EventTable& table, const EventTree& tree, Row gpu_row);
/// Rows of the subtree below `row` (itself excluded), as a slice of tree.host_rows (pre-order).
std::span<const Row> subtree_rows(const EventTree& tree, Row row);
/// Is `ancestor` on the way from `row` up to its root (or `row` itself)? O(1).
bool is_inside(const EventTree& tree, Row row, Row ancestor);

}  // namespace traceap
