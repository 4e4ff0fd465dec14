// Note [Where a collective is described]
//
// torch attaches the description ("Collective name", "In msg nelems", ...) to the host event
// record_param_comms and, where Kineto can link them, to the kernel. Older traces have only shapes
// on the operators (c10d::allreduce_) and annotations (nccl:all_reduce) above the launch; kernels
// that were launched before recording began have only their name, which for RCCL and for
// everything built from ncclSend/ncclRecv hides the kind. So each field is taken from the first
// of these that has it: kernel, host events above its launch, the kernel's name. A kernel that
// ends a coalesced group is launched after the calls that it serves: they stand before it on its
// thread. What a kernel does not say of its group is taken from the others of its stream, since a
// communicator has a stream of its own, else from the only group of the job.

#include "traceap/analysis/collectives/metadata.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/text.hpp"
#include "traceap/table/dtypes.hpp"
#include "traceap/table/int_lists.hpp"
#include "traceap/tree/iteration_name.hpp"
#include "traceap/tree/name_traits.hpp"

namespace traceap {
namespace {

/// An absurd number of elements is no size; nothing in a trace is trusted.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;
std::int64_t bounded(std::int64_t count) {
  return std::clamp<std::int64_t>(count, 0, kMaxElements);
}
std::int64_t multiply(std::int64_t a, std::int64_t b) {
  return a > 0 && b > kMaxElements / a ? kMaxElements : a * b;
}

/// Elements of the largest input in "[[8, 1024], [], [[4], [4]]]", where an input that is a list of
/// tensors counts as a whole.
class LargestInput {
 public:
  explicit LargestInput(std::string_view dims) { walk_int_lists(dims, *this); }
  std::int64_t elements() const { return largest_; }

  void open() {
    if (++depth_ == 2) input_ = 0;
    product_ = 1;
    has_number_ = false;
  }
  void close() {
    if (has_number_) input_ = bounded(input_ + product_);
    if (depth_-- == 2) largest_ = std::max(largest_, input_);
    has_number_ = false;
  }
  void number(std::optional<std::int64_t> value) {
    product_ = multiply(product_, bounded(value.value_or(kMaxElements)));
    has_number_ = true;
  }

 private:
  std::int64_t largest_ = 0, input_ = 0, product_ = 1;
  int depth_ = 0;
  bool has_number_ = false;
};

/// The first element type in an "Input type" list.
const ElementType* first_type(std::string_view types) {
  for (std::size_t open = types.find('"'); open != std::string_view::npos;) {
    const std::size_t close = string_end(types, open);
    if (close == std::string_view::npos) break;
    const ElementType* type = element_type(types.substr(open + 1, close - open - 2));
    if (type) return type;
    open = types.find('"', close);
  }
  return nullptr;
}

struct KindWord {
  std::string_view word;
  CollectiveKind kind;
};
/// Searched in order in the name without case, '_' and '-'.
constexpr KindWord kKindWords[] = {
    {"barrier", CollectiveKind::kBarrier},
    {"cleanlowlatencybuffer", CollectiveKind::kBarrier},  // DeepEP's: its ranks wait for each other
    {"cachednotify<", CollectiveKind::kBarrier},
    {"dispatchlayout", CollectiveKind::kUnknown},  // counts on its own rank
    {"dispatch", CollectiveKind::kDispatch},
    {"combine", CollectiveKind::kCombine},
    {"allreduce", CollectiveKind::kAllReduce},
    {"crossdevicereduce", CollectiveKind::kAllReduce},  // vLLM's and SGLang's own
    {"reducescatter", CollectiveKind::kReduceScatter},
    {"allgather", CollectiveKind::kAllGather},
    {"alltoallv", CollectiveKind::kAllToAllV},
    {"alltoall", CollectiveKind::kAllToAll},
    {"broadcast", CollectiveKind::kBroadcast},
    {"sendrecv", CollectiveKind::kSendRecv},
    {"gather", CollectiveKind::kGather},
    {"scatter", CollectiveKind::kScatter},
    {"reduce", CollectiveKind::kReduce},
    {"send", CollectiveKind::kSend},
    {"recv", CollectiveKind::kRecv},
};

/// Names of host events that describe the collective below them.
bool describes_collective(std::string_view name) {
  return name == "record_param_comms" || name.starts_with("c10d::") ||
         name.starts_with("_c10d_functional::") || name.starts_with("c10d_functional::") ||
         name.starts_with("nccl:") || name.starts_with("symm_mem::") || is_communication_name(name);
}

bool is_host_collective(std::string_view name) {
  return name.starts_with("gloo:") || name.starts_with("mpi:") || name.starts_with("ucc:");
}

/// What one event says of itself.
struct Message {
  std::string name;
  std::optional<std::int64_t> in, out, sequence, group_size, rank, source, target;
  const ElementType* type = nullptr;
  std::string in_split, out_split;
  ProcessGroup group;
  bool names_group = false;
};

class MessageReader {
 public:
  explicit MessageReader(const EventTable& table)
      : name_(table, "Collective name"),
        in_(table, "In msg nelems"),
        out_(table, "Out msg nelems"),
        dtype_(table, "dtype"),
        in_split_(table, "In split size"),
        out_split_(table, "Out split size"),
        group_name_(table, "Process Group Name"),
        group_text_(table, "Process Group Description"),
        group_ranks_(table, "Process Group Ranks"),
        group_size_(table, "Group size"),
        rank_start_(table, "Global rank start"),
        rank_stride_(table, "Global rank stride"),
        sequence_(table, "Seq"),
        rank_(table, "Rank"),
        source_(table, "Src Rank"),
        target_(table, "Dst Rank"),
        dims_(table, "Input Dims"),
        types_(table, "Input type") {}

  bool describes(Row row) const { return name_.has(row); }
  std::string name(Row row) const { return name_.text(row).value_or(""); }

  Message read(Row row) const {
    Message message;
    message.name = name(row);
    message.in = in_.integer(row);
    message.out = out_.integer(row);
    if (const auto dtype = dtype_.text(row)) message.type = element_type(*dtype);
    message.sequence = sequence_.integer(row);
    if (message.sequence && *message.sequence < 0) message.sequence.reset();
    message.rank = rank_.integer(row);
    message.source = source_.integer(row);
    message.target = target_.integer(row);
    message.in_split = in_split_.text(row).value_or("");
    message.out_split = out_split_.text(row).value_or("");
    read_group(row, message);
    return message;
  }

  /// Elements by the operator's inputs: older traces, and collectives that are not NCCL's, have
  /// nothing else.
  std::int64_t shape_elements(Row row, const ElementType** type) const {
    if (!dims_.has(row) || !types_.has(row)) return 0;
    *type = first_type(types_.json(row).value_or(""));
    return *type ? LargestInput(dims_.json(row).value_or("")).elements() : 0;
  }

 private:
  void read_group(Row row, Message& message) const {
    ProcessGroup& group = message.group;
    group.name = group_name_.text(row).value_or("");
    group.description = group_text_.text(row).value_or("");
    group.size = std::max<std::int64_t>(group_size_.integer(row).value_or(0), 0);
    bool complete = true;
    if (const auto ranks = group_ranks_.text(row)) {
      group.ranks = parse_int_list(*ranks, &complete);
    }
    if (!complete || group.ranks.empty()) group.ranks = ranks_by_stride(row, group.size);
    message.names_group = group_name_.has(row) || !group.ranks.empty();
    if (!group.ranks.empty()) group.size = static_cast<std::int64_t>(group.ranks.size());
  }

  std::vector<std::int64_t> ranks_by_stride(Row row, std::int64_t size) const {
    constexpr std::int64_t kMaxRanks = 1 << 20;
    const std::int64_t start = rank_start_.integer(row).value_or(-1);
    const std::int64_t stride = rank_stride_.integer(row).value_or(-1);
    std::vector<std::int64_t> ranks;
    if (size <= 1 || start < 0 || stride <= 0) return ranks;
    if (size > kMaxRanks || start > kMaxRanks || stride > kMaxRanks) return ranks;
    for (std::int64_t i = 0; i < size; ++i) ranks.push_back(start + i * stride);
    return ranks;
  }

  ArgReader name_, in_, out_, dtype_, in_split_, out_split_, group_name_, group_text_, group_ranks_,
      group_size_, rank_start_, rank_stride_, sequence_, rank_, source_, target_, dims_, types_;
};

/// A member of a JSON object, as text; empty if there is none.
std::string_view json_member(std::string_view object, std::string_view key) {
  std::size_t pos = skip_space(object, 0);
  if (pos >= object.size() || object[pos] != '{') return {};
  pos = skip_space(object, pos + 1);
  while (pos < object.size() && object[pos] == '"') {
    const std::size_t key_end = string_end(object, pos);
    if (key_end == std::string_view::npos) return {};
    const bool found = object.substr(pos + 1, key_end - pos - 2) == key;
    pos = skip_space(object, key_end);
    if (pos >= object.size() || object[pos] != ':') return {};
    pos = skip_space(object, pos + 1);
    const std::size_t end = value_end(object, pos);
    if (end == std::string_view::npos) return {};
    if (found) return object.substr(pos, end - pos);
    pos = skip_space(object, end);
    if (pos < object.size() && object[pos] == ',') pos = skip_space(object, pos + 1);
  }
  return {};
}

std::string json_text_member(std::string_view object, std::string_view key) {
  const std::string_view value = json_member(object, key);
  if (value.size() < 2 || value.front() != '"') return std::string(value);
  return unescape_json(value.substr(1, value.size() - 2));
}

/// The groups that the job had, by distributedInfo.pg_config.
std::vector<ProcessGroup> configured_groups(const EventTable& table) {
  std::vector<ProcessGroup> groups;
  for (const auto& [key, json] : table.metadata) {
    if (key != "distributedInfo") continue;
    std::string_view list = json_member(json, "pg_config");
    std::string unquoted;  // some versions write the list as a string
    if (!list.empty() && list.front() == '"') {
      unquoted = unescape_json(list.substr(1, list.size() - 2));
      list = unquoted;
    }
    std::size_t pos = list.find('{');
    while (pos != std::string_view::npos) {
      const std::size_t end = value_end(list, pos);
      if (end == std::string_view::npos) break;
      const std::string_view entry = list.substr(pos, end - pos);
      ProcessGroup group;
      group.name = json_text_member(entry, "pg_name");
      group.description = json_text_member(entry, "pg_desc");
      bool complete = true;
      group.ranks = parse_int_list(json_member(entry, "ranks"), &complete);
      if (!complete) group.ranks.clear();
      group.size = static_cast<std::int64_t>(group.ranks.size());
      if (const auto size = parse_int64(json_member(entry, "pg_size"))) {
        group.size = std::max<std::int64_t>(*size, 0);
      }
      groups.push_back(std::move(group));
      pos = list.find('{', end);
    }
  }
  return groups;
}

std::int64_t full_elements(CollectiveKind kind, std::int64_t in, std::int64_t out,
                           std::int64_t size) {
  in = bounded(in);
  out = bounded(out);
  switch (kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather:
      return out > in || size < 2 ? std::max(in, out) : multiply(in, bounded(size));
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kScatter:
      return in > out || size < 2 ? std::max(in, out) : multiply(out, bounded(size));
    default:
      return std::max(in, out);
  }
}

/// The positional argument that says how many experts a layer has, by operator.
struct ExpertsArgument {
  std::string_view op;
  std::size_t place;
};
constexpr ExpertsArgument kExpertsArguments[] = {{"low_latency_dispatch", 3},  // DeepEP
                                                 {"moe_a2a_dispatch", 7}};     // TensorRT-LLM

/// Element `place` of a JSON list of texts, as an integer.
std::optional<std::int64_t> integer_at(std::string_view list, std::size_t place) {
  for (std::size_t open = list.find('"'); open != std::string_view::npos;) {
    const std::size_t close = string_end(list, open);
    if (close == std::string_view::npos) break;
    if (place-- == 0) return parse_int64(list.substr(open + 1, close - open - 2));
    open = list.find('"', close);
  }
  return std::nullopt;
}

class ExpertReader {
 public:
  explicit ExpertReader(const EventTable& table)
      : table_(table), experts_(table, "num_experts"), inputs_(table, "Concrete Inputs") {}

  std::int64_t experts(Row row) const {
    std::optional<std::int64_t> found = experts_.integer(row);
    for (const ExpertsArgument& argument : kExpertsArguments) {
      if (found || !table_.name_of(row).ends_with(argument.op)) continue;
      found = integer_at(inputs_.json(row).value_or(""), argument.place);
    }
    return found && *found > 0 && *found <= kMaxElements ? *found : kNoId;
  }

 private:
  const EventTable& table_;
  ArgReader experts_, inputs_;
};

/// Elements of a token, by the template arguments of DeepEP's low-latency kernels, in which the
/// size of the model is the largest number.
std::int64_t token_elements(std::string_view name) {
  if (!contains(name, "internode_ll::")) return 0;
  std::int64_t largest = 0, number = 0;
  for (const char c : name.substr(0, name.find(">("))) {
    const bool digit = c >= '0' && c <= '9';
    number = digit ? bounded(number * 10 + (c - '0')) : 0;
    largest = std::max(largest, number);
  }
  return largest;
}

/// Does a dispatch of DeepEP's low-latency kernels send fp8? Its first template argument says so.
bool sends_fp8(std::string_view name) {
  const std::size_t open = name.find('<');
  if (open == std::string_view::npos) return false;
  std::string_view first = name.substr(open + 1, name.find_first_of(",>", open) - open - 1);
  if (first.starts_with("(bool)")) first.remove_prefix(6);
  return first == "true" || first == "1";
}

/// Kernels in which ranks write to each other's memory and wait for each other, with the least that
/// a transfer can take; NCCL's are not among them.
bool is_low_latency(std::string_view lower_name) {
  return contains_any(lower_name, {"internode_ll", "low_latency", "lowlatency", "pplx", "a2a"});
}

class CollectiveBuilder {
 public:
  CollectiveBuilder(const EventTable& table, const EventTree& tree)
      : table_(table),
        tree_(tree),
        reader_(table),
        experts_(table),
        graph_id_(table, "graph id"),
        host_name_state_(table.strings.size(), 0),
        configured_(configured_groups(table)),
        configured_index_(configured_.size(), kNoGroup) {
    for (std::uint32_t i = 0; i < configured_.size(); ++i) {
      if (!configured_[i].name.empty()) configured_by_name_[configured_[i].name] = i;
    }
  }

  CollectiveList build() {
    find_calls();
    for (Row r : tree_.gpu_rows) {
      if (tree_.gpu_class[r] == GpuClass::kCommunication) add(r, tree_.launch[r]);
    }
    add_host_collectives();
    std::stable_sort(list_.collectives.begin(), list_.collectives.end(),
                     [&](const Collective& a, const Collective& b) {
                       return table_.ts_ns[a.row] < table_.ts_ns[b.row];
                     });
    name_groups_of_streams();
    describe_exchanges();
    return std::move(list_);
  }

 private:
  static constexpr std::uint32_t kNoGroup = std::numeric_limits<std::uint32_t>::max();
  enum NameState : std::uint8_t { kUnseen = 0, kPlain, kDescribes, kBackend };

  NameState name_state(Row row) {
    std::uint8_t& state = host_name_state_[table_.name[row]];
    if (state == kUnseen) {
      const std::string_view name = table_.name_of(row);
      state = is_host_collective(name)     ? kBackend
              : describes_collective(name) ? kDescribes
                                           : kPlain;
    }
    return static_cast<NameState>(state);
  }

  /// Rows of record_param_comms that name a call (not a wait), and of host backends.
  void find_calls() {
    const StringId call = table_.strings.find("record_param_comms");
    for (Row r = 0; r < table_.size(); ++r) {
      poll_interrupt();
      if (!is_host(table_.kind[r]) || is_api_call(table_.kind[r]) || !table_.is_complete(r)) {
        continue;
      }
      if (table_.name[r] == call) {
        const std::string name = reader_.name(r);
        if (!name.empty() && name != "wait") calls_.push_back(r);
      } else if (table_.kind[r] == EventKind::kUserAnnotation && name_state(r) == kBackend) {
        backend_rows_.push_back(r);
      }
    }
    call_used_.assign(calls_.size(), false);
    for (std::uint32_t i = 0; i < calls_.size(); ++i) {
      calls_of_track_[table_.track[calls_[i]]].push_back(i);
    }
    if (!calls_.empty()) count_communication();
  }

  void count_communication() {
    communication_before_.assign(1, 0);
    for (Row host : tree_.host_rows) {
      const auto launched = tree_.launched_by(host);
      const bool communicates = std::any_of(launched.begin(), launched.end(), [&](Row gpu) {
        return tree_.gpu_class[gpu] == GpuClass::kCommunication;
      });
      communication_before_.push_back(communication_before_.back() + (communicates ? 1 : 0));
    }
  }

  void add_host_collectives() {
    for (Row r : backend_rows_) add(r, r);
  }

  /// Host events above a launch that describe the collective, innermost first.
  std::vector<Row> describing_rows(Row launch) {
    constexpr int kMaxLevels = 12;
    std::vector<Row> rows;
    Row host = launch;
    for (int level = 0; level < kMaxLevels && host != kNoRow; ++level) {
      if (name_state(host) != kPlain) rows.push_back(host);
      host = tree_.parent[host];
    }
    return rows;
  }

  void add(Row row, Row launch) {
    std::vector<Row> hosts = describing_rows(launch);
    const bool own_words = reader_.describes(row);
    mark_used(hosts);
    std::vector<Row> coalesced;
    const bool described = own_words || std::any_of(hosts.begin(), hosts.end(),
                                                    [&](Row r) { return reader_.describes(r); });
    if (!described && launch != kNoRow) coalesced = pending_calls(launch);

    Collective made;
    made.row = row;
    made.host = !hosts.empty() ? hosts.front() : coalesced.empty() ? kNoRow : coalesced.front();
    if (coalesced.size() > 1 && any_point_to_point(coalesced)) {
      add_batch(made, hosts, coalesced);
      return;
    }
    std::vector<Row> sources{row};
    sources.insert(sources.end(), hosts.begin(), hosts.end());
    if (!coalesced.empty()) sources.push_back(coalesced.front());
    describe(made, sources);
    for (std::size_t i = 1; i < coalesced.size(); ++i) {
      poll_interrupt();
      Collective other;
      describe(other, {coalesced[i]});
      made.bytes =
          made.bytes && other.bytes ? std::optional(*made.bytes + *other.bytes) : std::nullopt;
      ++made.members;
    }
    list_.collectives.push_back(std::move(made));
  }

  /// One kernel for several sends and receives: each gets an entry of its own.
  void add_batch(const Collective& common, const std::vector<Row>& hosts,
                 const std::vector<Row>& calls) {
    for (Row call : calls) {
      Collective made = common;
      made.host = call;
      std::vector<Row> sources{call};
      sources.insert(sources.end(), hosts.begin(), hosts.end());
      describe(made, sources);
      made.members = static_cast<std::uint32_t>(calls.size());
      list_.collectives.push_back(std::move(made));
    }
  }

  bool any_point_to_point(const std::vector<Row>& calls) const {
    return std::any_of(calls.begin(), calls.end(), [&](Row r) {
      return is_point_to_point(classify_collective(reader_.name(r)));
    });
  }

  std::size_t call_index(Row row) const {
    return static_cast<std::size_t>(std::lower_bound(calls_.begin(), calls_.end(), row) -
                                    calls_.begin());
  }

  void mark_used(const std::vector<Row>& hosts) {
    for (Row host : hosts) {
      const std::size_t at = call_index(host);
      if (at < calls_.size() && calls_[at] == host) call_used_[at] = true;
    }
  }

  /// Calls before a launch on its thread that no kernel has served, back to the last one that was.
  std::vector<Row> pending_calls(Row launch) {
    constexpr std::size_t kMaxCalls = 4096;
    std::vector<Row> calls;
    const auto mine = calls_of_track_.find(table_.track[launch]);
    if (mine == calls_of_track_.end()) return calls;
    const std::vector<std::uint32_t>& places = mine->second;
    auto next = std::lower_bound(places.begin(), places.end(), call_index(launch));
    while (next != places.begin() && calls.size() < kMaxCalls) {
      const std::uint32_t at = *--next;
      if (call_used_[at] || launches_communication(calls_[at])) break;
      call_used_[at] = true;
      calls.push_back(calls_[at]);
    }
    std::reverse(calls.begin(), calls.end());
    return calls;
  }

  bool launches_communication(Row host) const {
    const std::uint32_t position = tree_.host_position[host];
    return communication_before_[tree_.subtree_end[position]] != communication_before_[position];
  }

  /// Fills `made` from the first of `sources` that has each field.
  void describe(Collective& made, const std::vector<Row>& sources) {
    std::vector<Message> messages;
    for (Row row : sources) {
      if (is_api_call(table_.kind[row])) continue;
      messages.push_back(reader_.read(row));
    }
    made.name = name_of(messages, sources);
    made.kind = kind_of(messages, sources);
    made.group = group_index(said_group(messages));
    const ProcessGroup& group = list_.groups[made.group];
    for (const Message& m : messages) {
      if (m.sequence && made.sequence == kNoId) made.sequence = *m.sequence;
      if (made.peer == kNoId) made.peer = peer_of(made.kind, m, group);
    }
    for (Row row : is_expert_exchange(made.kind) ? sources : std::vector<Row>{}) {
      if (made.experts == kNoId) made.experts = experts_.experts(row);
    }
    if (made.peer == kNoId && is_point_to_point(made.kind)) made.peer = peer_in_titles(sources);
    measure(made, messages, sources, group.size);
  }

  std::string name_of(const std::vector<Message>& messages, const std::vector<Row>& sources) const {
    for (const Message& m : messages) {
      if (!m.name.empty()) return m.name;
    }
    for (Row row : sources) {
      const std::string_view name = table_.name_of(row);
      if (const std::size_t colon = name.find("ccl:"); colon != std::string_view::npos) {
        return std::string(name.substr(colon + 4));
      }
      if (is_host_collective(name)) return std::string(name.substr(name.find(':') + 1));
    }
    return sources.empty() ? std::string() : std::string(table_.name_of(sources.front()));
  }

  CollectiveKind kind_of(const std::vector<Message>& messages, const std::vector<Row>& sources) {
    CollectiveKind weak = CollectiveKind::kUnknown;
    const auto judge = [&](std::string_view name) {
      const CollectiveKind kind = classify_collective(name);
      if (kind == CollectiveKind::kSendRecv && weak == CollectiveKind::kUnknown) weak = kind;
      return kind != CollectiveKind::kUnknown && kind != CollectiveKind::kSendRecv;
    };
    for (const Message& m : messages) {
      if (!m.name.empty() && judge(m.name)) return classify_collective(m.name);
    }
    for (Row row : sources) {
      if (judge(table_.name_of(row))) return classify_collective(table_.name_of(row));
    }
    return weak;
  }

  /// What the calls themselves say of their group.
  static ProcessGroup said_group(const std::vector<Message>& messages) {
    ProcessGroup group;
    for (const Message& m : messages) {
      if (m.names_group) return m.group;
      if (group.size == 0 && !m.name.empty()) group.size = m.group.size;
    }
    return group;
  }

  /// Index of the group among those that the job had; kNoGroup if it is none of them.
  std::uint32_t configured_of(const ProcessGroup& said) const {
    if (!said.name.empty()) {
      const auto found = configured_by_name_.find(said.name);
      return found == configured_by_name_.end() ? kNoGroup : found->second;
    }
    return said.ranks.empty() && configured_.size() == 1 ? 0 : kNoGroup;
  }

  /// The number of a group, with what the job says of it.
  std::uint32_t group_index(ProcessGroup said) {
    const std::uint32_t known = configured_of(said);
    if (known == kNoGroup) return intern(std::move(said));
    const ProcessGroup& group = configured_[known];
    if (said.description.empty()) said.description = group.description;
    if (!said.ranks.empty()) return intern(std::move(said));
    if (group.ranks.empty()) {
      if (said.name.empty()) said.name = group.name;
      if (said.size == 0) said.size = group.size;
      return intern(std::move(said));
    }
    // The list of its ranks may be long and is looked at once, not with every call.
    std::uint32_t& index = configured_index_[known];
    if (index == kNoGroup) index = intern({group.name, {}, group.ranks, group.size});
    describe_group(index, said.description);
    return index;
  }

  /// Groups of the same name and ranks are one; where ranks are unknown, all else has to be equal.
  std::uint32_t intern(ProcessGroup group) {
    if (!group.ranks.empty()) group.size = static_cast<std::int64_t>(group.ranks.size());
    const bool known = !group.ranks.empty();
    const auto next = static_cast<std::uint32_t>(list_.groups.size());
    GroupKey key{group.name, group.ranks, known ? std::string() : group.description,
                 known ? 0 : group.size};
    const auto [it, added] = group_numbers_.try_emplace(std::move(key), next);
    if (added) {
      list_.groups.push_back(std::move(group));
    } else {
      describe_group(it->second, group.description);
    }
    return it->second;
  }

  void describe_group(std::uint32_t index, const std::string& description) {
    std::string& kept = list_.groups[index].description;
    if (kept.empty()) kept = description;
  }

  /// "Src Rank" and "Dst Rank" are global; "Rank" is the peer's place in the group.
  static std::int64_t peer_of(CollectiveKind kind, const Message& m, const ProcessGroup& group) {
    if (!is_point_to_point(kind)) return kNoId;
    const auto& global = kind == CollectiveKind::kSend ? m.target : m.source;
    if (global && *global >= 0) return *global;
    if (!m.rank || *m.rank < 0 || m.name.empty()) return kNoId;
    if (group.ranks.empty()) return *m.rank;
    const auto place = static_cast<std::size_t>(*m.rank);
    return place < group.ranks.size() ? group.ranks[place] : kNoId;
  }

  /// "nccl:send 0->1", "nccl:recv 0<-1": own rank, then the peer's.
  std::int64_t peer_in_titles(const std::vector<Row>& sources) const {
    for (Row row : sources) {
      const std::string_view name = table_.name_of(row);
      const std::size_t arrow = std::min(name.find("->"), name.find("<-"));
      if (arrow == std::string_view::npos) continue;
      if (const auto peer = parse_int64(trim_space(name.substr(arrow + 2)))) return *peer;
    }
    return kNoId;
  }

  void measure(Collective& made, const std::vector<Message>& messages,
               const std::vector<Row>& sources, std::int64_t group_size) {
    for (const Message& m : messages) {
      if (!m.in && !m.out) continue;
      if (!m.type) continue;
      const std::int64_t in = m.in.value_or(0), out = m.out.value_or(0);
      if (in < 0 || out < 0 || std::max(in, out) > kMaxElements) continue;
      made.dtype = m.type->dtype;
      made.bytes = multiply(full_elements(made.kind, in, out, group_size), m.type->bytes);
      made.sent_bytes = part_bytes(m.in_split, in * m.type->bytes);
      made.received_bytes = part_bytes(m.out_split, out * m.type->bytes);
      if (!made.sent_bytes.empty() && made.kind == CollectiveKind::kAllToAll) {
        made.kind = CollectiveKind::kAllToAllV;
      }
      return;
    }
    measure_shapes(made, sources, group_size);
  }

  /// Bytes to each rank from sizes along the first dimension.
  static std::vector<std::int64_t> part_bytes(const std::string& split, std::int64_t bytes) {
    bool complete = true;
    std::vector<std::int64_t> parts = parse_int_list(split, &complete);
    std::int64_t sum = 0;
    for (std::int64_t part : parts) {
      if (part < 0 || part > kMaxElements) return {};
      sum += part;
      if (sum > kMaxElements) return {};
    }
    if (!complete || parts.empty() || (sum == 0 && bytes > 0)) return {};
    for (std::int64_t& part : parts) {
      const long double share = sum > 0 ? static_cast<long double>(part) / sum : 0.0L;
      part = static_cast<std::int64_t>(share * static_cast<long double>(bytes) + 0.5L);
    }
    return parts;
  }

  void measure_shapes(Collective& made, const std::vector<Row>& sources, std::int64_t group_size) {
    std::int64_t best = 0;
    bool input_only = true;  // the annotation names the input, the operator its result too
    const ElementType* type = nullptr;
    for (Row row : sources) {
      if (!is_host(table_.kind[row])) continue;
      const ElementType* own = nullptr;
      const std::int64_t elements = reader_.shape_elements(row, &own);
      if (elements <= 0 || elements >= kMaxElements) continue;
      input_only = input_only && table_.kind[row] == EventKind::kUserAnnotation;
      if (elements > best) {
        best = elements;
        type = own;
      }
      if (table_.name_of(row).starts_with("c10d::")) break;  // above it are others' tensors
    }
    if (!type) return;
    made.dtype = type->dtype;
    const std::int64_t full = input_only && (made.kind == CollectiveKind::kAllGather ||
                                             made.kind == CollectiveKind::kGather)
                                  ? full_elements(made.kind, best, 0, group_size)
                                  : best;
    made.bytes = multiply(full, type->bytes);
  }

  /// Kernels without a group take that of the others on their stream, if these agree.
  void name_groups_of_streams() {
    std::vector<std::uint32_t> of_stream(tree_.streams.size(), kNoRow);
    std::vector<bool> mixed(tree_.streams.size(), false);
    const auto is_named = [&](std::uint32_t g) {
      return !list_.groups[g].name.empty() || !list_.groups[g].ranks.empty();
    };
    for (const Collective& c : list_.collectives) {
      const std::uint32_t stream = tree_.stream_of[c.row];
      if (stream == kNoRow || !is_named(c.group)) continue;
      if (of_stream[stream] != kNoRow && of_stream[stream] != c.group) mixed[stream] = true;
      of_stream[stream] = c.group;
    }
    for (Collective& c : list_.collectives) {
      const std::uint32_t stream = tree_.stream_of[c.row];
      // Experts lie on ranks of their own, whatever else runs on the stream.
      if (is_expert_exchange(c.kind)) continue;
      if (stream == kNoRow || is_named(c.group) || mixed[stream]) continue;
      if (of_stream[stream] != kNoRow) c.group = of_stream[stream];
    }
  }

  /// What the other kernels, and the iteration, tell of those that wait inside.
  void describe_exchanges() {
    std::vector<std::optional<IterationMark>> marks;
    for (const Step& step : tree_.steps) marks.push_back(read_iteration_name(step.name));
    std::map<WorkKey, std::vector<Collective*>> of_work;
    const Collective* before = nullptr;
    bool second = false;
    for (Collective& c : list_.collectives) {
      poll_interrupt();
      // Some exchanges take two launches of one name: the first sends, the second receives.
      second = before && is_expert_exchange(c.kind) && !second &&
               table_.name[before->row] == table_.name[c.row];
      before = &c;
      const std::uint32_t step = tree_.step[c.row];
      const IterationMark* mark = step != kNoStep && marks[step] ? &*marks[step] : nullptr;
      if (is_expert_exchange(c.kind)) measure_by_name(c, mark);
      if (table_.dur_ns[c.row] <= 0) continue;
      if (const auto key = work_of(c, mark, second)) of_work[*key].push_back(&c);
    }
    for (const auto& [key, alike] : of_work) set_transfer(alike);
  }

  void set_transfer(const std::vector<Collective*>& alike) const {
    constexpr std::size_t kFewest = 3;  // the shortest of two says little
    if (alike.size() < kFewest) return;
    const auto duration_ns = [&](const Collective* c) { return table_.dur_ns[c->row]; };
    const Collective* shortest = *std::min_element(
        alike.begin(), alike.end(),
        [&](const Collective* a, const Collective* b) { return duration_ns(a) < duration_ns(b); });
    for (Collective* c : alike) c->transfer_ns = duration_ns(shortest);
  }

  static std::int64_t tokens_of(const RequestGroup& group) {
    return bounded(group.tokens.value_or(group.requests.value_or(0)));
  }

  void measure_by_name(Collective& c, const IterationMark* mark) const {
    const std::string_view name = table_.name_of(c.row);
    const std::int64_t token = token_elements(name);
    if (c.bytes || token == 0 || !mark) return;
    const bool fp8 = c.kind == CollectiveKind::kDispatch && sends_fp8(name);
    const std::int64_t tokens = bounded(tokens_of(mark->prefill) + tokens_of(mark->decode));
    if (tokens == 0) return;
    c.dtype = fp8 ? "float8_e4m3fn" : "bfloat16";
    c.bytes = multiply(multiply(tokens, token), fp8 ? 1 : 2);
  }

  /// Kernels of equal work have equal keys: those of one name in replays of one graph, or in
  /// iterations of as many tokens. Nothing for kernels that do not wait inside.
  using WorkKey = std::array<std::int64_t, 6>;
  std::optional<WorkKey> work_of(const Collective& c, const IterationMark* mark,
                                 bool second) const {
    const std::string lower = to_lower(table_.name_of(c.row));
    if (!table_.is_gpu_event(c.row) || contains_any(lower, {"nccl", "rccl"})) return std::nullopt;
    const Row launch = tree_.launch[c.row];
    const bool replayed = launch != kNoRow && tree_.api[launch] == ApiClass::kGraphLaunch;
    if (!replayed && !(is_expert_exchange(c.kind) && is_low_latency(lower))) return std::nullopt;
    return WorkKey{std::int64_t{table_.name[c.row]} * 2 + (second ? 1 : 0),
                   c.bytes.value_or(kNoId),
                   graph_id_.integer(c.row).value_or(kNoId),
                   replayed ? static_cast<std::int64_t>(tree_.launched_by(launch).size()) : kNoId,
                   mark ? tokens_of(mark->prefill) : kNoId,
                   mark ? mark->graph_batch.value_or(tokens_of(mark->decode)) : kNoId};
  }

  const EventTable& table_;
  const EventTree& tree_;
  MessageReader reader_;
  ExpertReader experts_;
  ArgReader graph_id_;
  std::vector<std::uint8_t> host_name_state_;
  std::vector<ProcessGroup> configured_;
  std::vector<std::uint32_t> configured_index_;  ///< in list_.groups
  std::map<std::string, std::uint32_t> configured_by_name_;
  using GroupKey = std::tuple<std::string, std::vector<std::int64_t>, std::string, std::int64_t>;
  std::map<GroupKey, std::uint32_t> group_numbers_;
  std::vector<Row> calls_, backend_rows_;
  std::vector<bool> call_used_;
  std::map<TrackId, std::vector<std::uint32_t>> calls_of_track_;  ///< places in calls_
  /// Per position in the tree's host rows: rows before it that launched communication.
  std::vector<std::uint32_t> communication_before_;
  CollectiveList list_;
};

}  // namespace

std::string_view collective_kind_name(CollectiveKind kind) {
  constexpr std::array<std::string_view, kCollectiveKindCount> kNames = {
      "unknown",   "all_reduce", "broadcast",  "reduce",       "all_gather", "reduce_scatter",
      "gather",    "scatter",    "all_to_all", "all_to_all_v", "send",       "recv",
      "send_recv", "barrier",    "dispatch",   "combine"};
  return kNames[static_cast<std::size_t>(kind)];
}

CollectiveKind classify_collective(std::string_view name) {
  constexpr std::size_t kMaxName = 256;  // template arguments of kernels are long and say nothing
  std::string plain;
  for (char c : spoken_part(name).substr(0, kMaxName)) {
    if (c == '_' || c == '-') continue;
    plain += to_lower(c);
  }
  for (const KindWord& entry : kKindWords) {
    if (plain.find(entry.word) != std::string::npos) return entry.kind;
  }
  return CollectiveKind::kUnknown;
}

std::vector<std::int64_t> parse_int_list(std::string_view text, bool* complete) {
  struct {
    std::vector<std::int64_t> values;
    bool whole;
    void open() {}
    void close() {}
    void number(std::optional<std::int64_t> value) {
      whole = whole && value.has_value();
      values.push_back(value.value_or(0));
    }
  } list{{}, text.find("...") == std::string_view::npos};
  walk_int_lists(text, list);
  if (complete) *complete = list.whole;
  return std::move(list.values);
}

CollectiveList build_collectives(const EventTable& table, const EventTree& tree) {
  return CollectiveBuilder(table, tree).build();
}

}  // namespace traceap
