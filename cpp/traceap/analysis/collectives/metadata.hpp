#pragma once
// The collectives of one rank, and what its trace says of each: kind, group, message, sequence.
// The one reader of this: analyses over several ranks and the rules for one build on it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

enum class CollectiveKind : std::uint8_t {
  kUnknown = 0,
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kAllToAllV,
  kSend,
  kRecv,
  kSendRecv,  ///< point to point work that does not say which
  kBarrier,
  kDispatch,  ///< tokens go to the ranks of their experts
  kCombine,   ///< and what the experts made of them comes back
};
inline constexpr int kCollectiveKindCount = static_cast<int>(CollectiveKind::kCombine) + 1;
/// snake_case, such as "all_reduce".
std::string_view collective_kind_name(CollectiveKind kind);
/// From any of the names that a collective goes by: "allreduce_coalesced", "nccl:_all_gather_base",
/// "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", "send 0->1".
CollectiveKind classify_collective(std::string_view name);
/// Does it exchange tokens with the ranks that hold their experts?
constexpr bool is_expert_exchange(CollectiveKind kind) {
  return kind == CollectiveKind::kDispatch || kind == CollectiveKind::kCombine;
}
constexpr bool is_point_to_point(CollectiveKind kind) {
  return kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv;
}
/// Does no rank leave before every rank has come? True where each rank's result needs data (or the
/// arrival) of all others; a broadcast's root, say, may leave early.
constexpr bool ends_together(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather ||
         kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll ||
         kind == CollectiveKind::kAllToAllV || kind == CollectiveKind::kBarrier ||
         is_expert_exchange(kind);
}

struct ProcessGroup {
  std::string name;                 ///< "Process Group Name"; empty where not recorded
  std::string description;          ///< such as "default_pg"
  std::vector<std::int64_t> ranks;  ///< global ranks by group rank; empty where not recorded
  std::int64_t size = 0;            ///< 0 where not recorded
  friend bool operator==(const ProcessGroup&, const ProcessGroup&) = default;
};

struct Collective {
  Row row = kNoRow;   ///< the GPU kernel, or the host range of a CPU backend (gloo, mpi, ucc)
  Row host = kNoRow;  ///< the host event that describes it
  CollectiveKind kind = CollectiveKind::kUnknown;
  std::uint32_t group = 0;  ///< in CollectiveList::groups
  /// The whole message as nccl-tests counts it: what an all-gather has gathered, what a
  /// reduce-scatter is given; else the larger of input and output.
  std::optional<std::int64_t> bytes;
  std::int64_t sequence = kNoId;  ///< "Seq"
  std::int64_t peer = kNoId;      ///< of send and recv: the other side's global rank
  std::int64_t experts = kNoId;   ///< of a dispatch or combine: experts of the layer, on all ranks
  std::uint32_t members = 1;      ///< calls that one kernel serves (a coalesced group)
  /// Of a kernel that waits inside, the shortest duration of those on its rank that do equal work;
  /// kNoId where fewer than three do. See Note [Kernels that wait inside].
  std::int64_t transfer_ns = kNoId;
  std::string_view dtype;  ///< torch's name, such as "bfloat16"; empty where not recorded
  std::string name;        ///< as recorded: "Collective name", else annotation, else kernel
  /// Of an all-to-all with uneven parts: bytes to (from) each rank of the group. Empty if even, not
  /// recorded, or cut off by the profiler (beyond 30 ranks).
  std::vector<std::int64_t> sent_bytes, received_bytes;
};

struct CollectiveList {
  std::vector<Collective> collectives;  ///< by start
  std::vector<ProcessGroup> groups;     ///< never empty where there are collectives
};

/// O(n) in events with a small constant, O(1) per collective.
CollectiveList build_collectives(const EventTable& table, const EventTree& tree);

/// "[0, 1, 2]" to integers; `complete` (if given) says whether nothing was cut off by "...".
std::vector<std::int64_t> parse_int_list(std::string_view text, bool* complete = nullptr);

}  // namespace traceap
