#pragma once
// The events of each window as plain arrays, for models that read events: GPU events, GPU idle
// intervals, and what the host did that the GPU waits for. docs/scorers.md defines every column.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traceap/analysis/idle/idle.hpp"
#include "traceap/windows/window_set.hpp"

namespace traceap {

enum class TokenKind : std::uint8_t {
  kKernel = 0,
  kMemset,
  kCollective,       ///< a GPU event of class communication
  kCopy,             ///< a GPU event of class memcpy
  kGap,              ///< the GPU is idle
  kSynchronization,  ///< the host waits for the GPU
  kBlockingCopy,     ///< the host is in a copy call until the copy is done
  kDataLoading,      ///< the next batch is made or waited for
  kAllocator,        ///< device or pinned memory is taken or given back
  kCompiledRegion,   ///< the outermost call of compiled code
};
inline constexpr int kTokenKindCount = static_cast<int>(TokenKind::kCompiledRegion) + 1;
/// snake_case, such as "blocking_copy".
std::string_view token_kind_name(TokenKind kind);
constexpr bool is_gpu_token(TokenKind kind) { return kind <= TokenKind::kCopy; }

/// Finer than kinds: collectives by what they do, copies by direction and memory, gaps by cause.
/// Names by code, such as "kernel", "copy/host_to_device/pageable", "gap/host_wait".
const std::vector<std::string>& token_class_names();

/// Bits of Tokens::flags.
enum TokenFlag : std::uint8_t {
  kTokenContinued = 1,   ///< began before the window
  kTokenInGraph = 2,     ///< launched by a graph
  kTokenBackward = 4,    ///< belongs to the backward pass
  kTokenInCompiled = 8,  ///< launched within a compiled region
};

/// Code of a delay that does not exist: orphans, gaps, host rows. Others are 0 to levels - 1.
inline constexpr std::int16_t kNoDelayCode = 256;
/// Entries of Tokens::names that are no names: nothing is known; a GPU event without a launch.
inline constexpr std::int32_t kNoneName = 0, kNoLaunchName = 1;
/// A gap shorter than both is no token: launches leave some us between kernels.
inline constexpr std::int64_t kMinGapNs = 20'000;
inline constexpr double kMinGapShare = 0.005;

struct TokenOptions {
  /// Tokens of a window, at most 65536. Of fuller windows the rarest classes are kept whole and the
  /// others share what is left equally, each evenly over its events (Note [Thinning]).
  std::uint32_t cap = 128;
  bool gaps = true;  ///< one for each idle interval over kMinGapNs and kMinGapShare of the window
  bool host = true;  ///< what the threads that feed the GPU waited for, and compiled regions
  /// Events that began earlier and reach into the window are tokens of it too.
  bool continued = true;
};

/// One entry per token, by window and start. Invariant: offsets.back() == row.size().
struct Tokens {
  std::vector<std::uint32_t> offsets;  ///< windows + 1: into the columns
  std::vector<std::uint32_t> folded;   ///< per window: events left out by the cap
  std::vector<Row> row;                ///< the event; of gaps what explains them, or kNoRow
  std::vector<TokenKind> kind;
  std::vector<std::uint8_t> class_code;  ///< in token_class_names()
  std::vector<std::uint8_t> flags;       ///< TokenFlag bits
  std::vector<std::int64_t> start_ns;    ///< of the whole event
  std::vector<std::int64_t> dur_ns;      ///< of the whole event
  std::vector<float> position;           ///< max(0, start - window's start), 0 to 1000
  std::vector<std::int32_t> name;        ///< in names
  std::vector<std::int32_t> cpu_name;    ///< of the innermost operator above the launch, in names
  std::vector<std::int16_t> delay_code;  ///< kDelayRange, or kNoDelayCode
  std::vector<std::int16_t> duration_code;  ///< kDurationRange
  std::vector<std::int32_t> stream;         ///< in tree.streams; -1 for gaps and host rows
  std::vector<std::uint8_t> stream_role;    ///< StreamRole, or kNoStreamRole
  std::vector<std::int64_t> bytes;          ///< of copies, memsets and collectives; 0 if not told
  std::vector<std::int64_t> grid_blocks;    ///< of kernels; 0 if not told
  std::vector<std::int32_t> queue_depth;    ///< what the launch found queued; -1 if unknown
  std::vector<std::int64_t> stream_gap_ns;  ///< since the event before on the stream; -1 if none
  std::vector<std::int64_t> launch_dur_ns;  ///< of the launch call; -1 without one
  /// Distinct names as recorded. Views of the table's strings, or of static storage.
  std::vector<std::string_view> names;

  std::uint32_t window_count() const { return static_cast<std::uint32_t>(folded.size()); }
};
inline constexpr std::uint8_t kNoStreamRole = 3;

/// `idle` covers `windows`, as for build_features. Throws OptionError for a cap of 0 or
/// above 65536. O(n + windows * events that reach into several).
Tokens build_tokens(const EventTable& table, const EventTree& tree, const IdleBreakdown& idle,
                    const WindowSet& windows, const TokenOptions& options = {});

}  // namespace traceap
