#include "traceap/analysis/idle/serving_work.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "traceap/analysis/idle/host_self.hpp"
#include "traceap/base/text.hpp"

namespace traceap {
namespace {

bool is_letter(char c) { return c >= 'a' && c <= 'z'; }

/// Does the text hold one of the words, with no letter beside it?
bool has_word(std::string_view lower, Words words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    for (std::size_t at = lower.find(word); at != std::string_view::npos;
         at = lower.find(word, at + 1)) {
      const std::size_t end = at + word.size();
      if ((at == 0 || !is_letter(lower[at - 1])) && (end == lower.size() || !is_letter(lower[end])))
        return true;
    }
    return false;
  });
}

std::optional<ServingWork> work_of_call(ApiClass api) {
  if (is_launch(api)) return ServingWork::kLaunch;
  if (is_copy_call(api) || api == ApiClass::kMemset) return ServingWork::kTransfer;
  if (is_synchronisation(api)) return ServingWork::kSynchronization;
  return std::nullopt;
}

/// What each row of a thread does, from the row around it where its own name does not tell.
class WorkOfRows {
 public:
  WorkOfRows(const EventTable& table, const EventTree& tree, TrackId track)
      : table_(table), tree_(tree), begin_(tree.host_offsets[track]) {
    names_.resize(table.strings.size());
    works_.reserve(tree.host_offsets[track + 1] - begin_);
    for (std::uint32_t i = begin_; i < tree.host_offsets[track + 1]; ++i) {  // parents come first
      poll_interrupt();
      const Row row = tree.host_rows[i], parent = tree.parent[row];
      const ServingWork around = parent == kNoRow ? ServingWork::kOtherHostWork : (*this)(parent);
      works_.push_back(own_work(row).value_or(around));
    }
  }

  ServingWork operator()(Row row) const { return works_[tree_.host_position[row] - begin_]; }

 private:
  struct OfName {
    bool is_read = false;
    std::optional<ServingWork> work;
  };

  std::optional<ServingWork> own_work(Row row) {
    if (tree_.api[row] != ApiClass::kNone) return work_of_call(tree_.api[row]);
    OfName& name = names_[table_.name[row]];
    if (!name.is_read) name = {true, read_serving_work(table_.name_of(row))};
    return name.work;
  }

  const EventTable& table_;
  const EventTree& tree_;
  std::uint32_t begin_;
  std::vector<OfName> names_;
  std::vector<ServingWork> works_;
};

/// Takes what a thread does by time, and keeps what lies inside of the stretches.
class StretchWalk {
 public:
  explicit StretchWalk(std::span<const Interval> stretches) : stretches_(stretches) {}

  void add(Interval time, ServingWork work, Row row) {
    for (; next_ < stretches_.size() && stretches_[next_].start_ns < time.end_ns; ++next_) {
      const Interval& stretch = stretches_[next_];
      const Interval inside{std::max(time.start_ns, begin_ns()),
                            std::min(time.end_ns, stretch.end_ns)};
      if (inside.end_ns > inside.start_ns) {
        fill_until(inside.start_ns);
        pieces_.push_back({inside, work, row});
        covered_ns_ = inside.end_ns;
      }
      if (stretch.end_ns > time.end_ns) return;
      fill_until(stretch.end_ns);
    }
  }

  std::vector<ServingPiece> finish() {
    for (; next_ < stretches_.size(); ++next_) fill_until(stretches_[next_].end_ns);
    return std::move(pieces_);
  }

 private:
  /// Where the part of the next stretch begins that nothing covers yet.
  std::int64_t begin_ns() const { return std::max(covered_ns_, stretches_[next_].start_ns); }

  void fill_until(std::int64_t end_ns) {
    const Interval gap{begin_ns(), end_ns};
    if (gap.end_ns <= gap.start_ns) return;
    pieces_.push_back({gap, ServingWork::kNotRecorded, kNoRow});
    covered_ns_ = end_ns;
  }

  std::span<const Interval> stretches_;
  std::size_t next_ = 0;
  std::int64_t covered_ns_ = std::numeric_limits<std::int64_t>::min();
  std::vector<ServingPiece> pieces_;
};

}  // namespace

std::string_view serving_work_name(ServingWork work) {
  static constexpr std::array<std::string_view, kServingWorkCount> kNames{
      "scheduling",      "input_preparation", "sampling",
      "detokenizing",    "transfer",          "launch",
      "waiting",         "synchronization",   "garbage_collection",
      "other_host_work", "not_recorded"};
  return kNames[static_cast<std::size_t>(work)];
}

std::optional<ServingWork> read_serving_work(std::string_view name) {
  const std::string lower = to_lower(name);
  const auto holds = [&](Words words) { return contains_any(lower, words); };
  if (holds({"garbage", "gc.collect", "gen0 collection", "gen1 collection", "gen2 collection"}))
    return ServingWork::kGarbageCollection;
  if (holds({"detoken", "tokenizer", "decode_stream", "incremental_decode"}))
    return ServingWork::kDetokenizing;
  if (holds({"sampl", "logitsprocess", "logits_process", "rejection", "argmax", "multinomial",
             "penalt", "grammar", "bitmask"}))
    return ServingWork::kSampling;
  if (holds({"prepare_input",  "prepareinput",          "prepare_batch",     "prepare_decode",
             "prepare_extend", "prepare_prefill",       "prepare_for_",      "input_batch",
             "inputbatch",     "init_forward_metadata", "attn_metadata",     "build_metadata",
             "slot_mapping",   "block_table",           "forwardbatch",      "init_new",
             "update_states",  "make_buffer",           "prepare_tp_inputs", "replay_prepare"}))
    return ServingWork::kInputPreparation;
  if (holds({"schedul", "get_next_batch", "event_loop", "update_running", "enginecore",
             "engine_core", "process_batch_result", "update_from_output", "kv_cache_manager",
             "radix_cache", "allocate_slots", "recv_requests", "process_input_requests",
             "stream_output", "output_processor"}))
    return ServingWork::kScheduling;
  if (has_word(lower, {"recv", "poll", "select", "acquire", "dequeue", "wait", "sleep"}) ||
      holds({"queue.get", "queue.py", "zmq", "shm_broadcast", "selectors.py", "sched_yield"}))
    return ServingWork::kWaiting;
  return std::nullopt;
}

std::vector<ServingPiece> split_by_serving_work(const EventTable& table, const EventTree& tree,
                                                TrackId track,
                                                std::span<const Interval> stretches) {
  StretchWalk walk(stretches);
  if (track != kNoTrack && !stretches.empty()) {
    const WorkOfRows work_of(table, tree, track);
    const std::int64_t shift_ns = tree.launch_delay_correction_ns;
    visit_self_time(table, tree, track, [&](Row row, Interval piece) {
      walk.add({piece.start_ns - shift_ns, piece.end_ns - shift_ns}, work_of(row), row);
    });
  }
  return walk.finish();
}

}  // namespace traceap
