// GPU events by stream, and what each stream is for.

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/tree/build_parts.hpp"

namespace traceap {

namespace {

using StreamKey = std::pair<std::int32_t, std::int64_t>;

/// Device and stream of a GPU event. An annotated CUDA graph draws its kernels elsewhere and keeps
/// the stream they ran on in `original_stream` (torch.profiler, 2026).
class StreamKeys {
 public:
  explicit StreamKeys(const EventTable& table)
      : table_(table), original_stream_(table, "original_stream") {}

  StreamKey operator()(Row row) const {
    const std::int64_t stream = original_stream_.integer(row).value_or(table_.stream[row]);
    return {table_.device[row], stream};
  }

 private:
  const EventTable& table_;
  RareKey original_stream_;
};

/// Numbers keys in order of first appearance; neighbours mostly share their stream.
class StreamNumbers {
 public:
  std::uint32_t number(StreamKey key) {
    if (last_ != nullptr && last_->first == key) return last_->second;
    const auto next = static_cast<std::uint32_t>(numbers_.size());
    last_ = &*numbers_.try_emplace(key, next).first;
    return last_->second;
  }
  const std::map<StreamKey, std::uint32_t>& keys() const { return numbers_; }

 private:
  std::map<StreamKey, std::uint32_t> numbers_;
  const std::pair<const StreamKey, std::uint32_t>* last_ = nullptr;
};

StreamRole role_of(const EventTable& table, const EventTree& tree, const Stream& stream) {
  std::array<double, 4> busy_ns{};  // by GpuClass; a sum that may exceed int64 on hostile input
  for (const Row row : stream.rows) {
    busy_ns[static_cast<std::size_t>(tree.gpu_class[row])] +=
        static_cast<double>(table.dur_ns[row]);
  }
  const double compute = busy_ns[static_cast<std::size_t>(GpuClass::kCompute)];
  const double communication = busy_ns[static_cast<std::size_t>(GpuClass::kCommunication)];
  const double copy = busy_ns[static_cast<std::size_t>(GpuClass::kMemcpy)];
  if (communication > compute && communication >= copy) return StreamRole::kCommunication;
  return copy > compute ? StreamRole::kCopy : StreamRole::kCompute;
}

}  // namespace

void group_streams(const TreeContext& context, EventTree& tree) {
  const EventTable& table = context.table;
  tree.stream_of.assign(table.size(), kNoRow);
  const StreamKeys key_of(table);
  StreamNumbers numbers;
  for (const Row row : tree.gpu_rows) tree.stream_of[row] = numbers.number(key_of(row));
  std::vector<std::uint32_t> place(numbers.keys().size());
  for (const auto& [key, number] : numbers.keys()) {  // the map is sorted by (device, stream)
    place[number] = static_cast<std::uint32_t>(tree.streams.size());
    tree.streams.push_back({key.first, key.second, StreamRole::kCompute, {}});
  }
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    tree.stream_of[row] = place[tree.stream_of[row]];
    tree.streams[tree.stream_of[row]].rows.push_back(row);
  }
  for (Stream& stream : tree.streams) stream.role = role_of(table, tree, stream);
}

}  // namespace traceap
