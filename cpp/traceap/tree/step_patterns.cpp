// Steps where nobody called profiler.step(): the repeated pattern of the main thread.
//
// Note [Inferred steps]: the rows at the top of the main thread (below ranges that wrap all of it)
// are read as a sequence of names without their numbers. A name is a border if the sequences
// between its occurrences are the same at least 3 times in a row. All borders must agree on one
// period; then the pattern still has to show that it is a step and not, say, a layer: it holds an
// optimizer, loader or step annotation and makes up most of the thread, or it is at least
// kMinPlainRows long and the whole thread is nothing but this pattern, cut off at both ends. Its
// durations must be alike. A pattern of nothing but backward nodes and parameter updates is the
// loop of an optimizer over its parameters, and a range that is itself a part of a step wraps no
// steps. Everything else counts as ambiguous and leaves the trace without steps.
// A step begins with fetching the batch, else behind the optimizer's step, else where the pattern
// is first seen.

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/offsets.hpp"
#include "traceap/base/statistics.hpp"
#include "traceap/base/text.hpp"
#include "traceap/tree/build_parts.hpp"
#include "traceap/tree/iteration_name.hpp"
#include "traceap/tree/iterations.hpp"

namespace traceap {

namespace {

constexpr std::size_t kMinRepetitions = 3;
// Set-up and clean-up may take the rest, of the rows or of the time (a cold start is slow).
constexpr double kMinCoverage = 0.75;
// A pattern without any mark: layers repeat too, but rarely as the whole thread and with so many
// ops.
constexpr std::size_t kMinPlainRows = 8;
// The first repetition warms up; others take at most this many times more or less than the median,
// but for one in ten (garbage collection, a checkpoint).
constexpr double kMaxDurationRatio = 2.0;
constexpr std::size_t kDurationsPerOutlier = 10;
// A range that covers this much of its thread wraps the loop.
constexpr double kWrapperShare = 0.9;

/// "step 12" and "step 13" are the same word: digits and addresses don't count.
std::string without_numbers(std::string_view name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto is_hex = [&](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); };
  std::string out;
  for (std::size_t i = 0; i < name.size();) {
    if (!is_digit(name[i])) {
      out.push_back(name[i++]);
      continue;
    }
    const bool address = name.substr(i).starts_with("0x");
    i += address ? 2 : 0;
    while (i < name.size() && (address ? is_hex(name[i]) : is_digit(name[i]))) ++i;
    out.push_back('#');
  }
  return out;
}

std::vector<Row> child_rows(const EventTree& tree, std::uint32_t begin, std::uint32_t end) {
  std::vector<Row> rows;
  for (std::uint32_t i = begin; i < end; i = tree.subtree_end[i]) rows.push_back(tree.host_rows[i]);
  return rows;
}

/// Of an operator that does nothing but update tensors, as the loop of an optimizer consists of:
/// `in_place` ones and pointwise arithmetic. Models compute more than that.
struct UpdateWord {
  bool is_arithmetic = false, in_place = false, is_glue = false;
};

UpdateWord classify_update(std::string_view name) {
  constexpr std::string_view kNamespace = "aten::";
  if (!name.starts_with(kNamespace)) return {.is_glue = is_any(name, {"detach", "detach_"})};
  name.remove_prefix(kNamespace.size());
  if (name.starts_with("_foreach_") || name.starts_with("_fused_")) return {true, true, false};
  const bool in_place = name.ends_with("_");
  if (in_place) name.remove_suffix(1);
  const bool is_arithmetic =
      is_any(name, {"add",   "sub",  "mul",  "div",  "addcmul", "addcdiv",   "lerp",    "sqrt",
                    "rsqrt", "pow",  "neg",  "sign", "abs",     "sgn",       "maximum", "clamp",
                    "zero",  "fill", "norm", "rsub", "square",  "reciprocal"});
  const bool is_glue =
      is_any(name, {"copy", "to", "_to_copy", "empty", "empty_like", "empty_strided", "zeros",
                    "zeros_like", "ones_like", "full_like", "clone", "detach", "view", "as_strided",
                    "item", "_local_scalar_dense", "linalg_vector_norm", "resolve_conj"});
  return {is_arithmetic, is_arithmetic && in_place, is_glue};
}

/// A row that belongs to some part of a step by its name: steps are not to be found inside it.
bool is_part_of_step(const TreeContext& context, Row row) {
  return context.has_trait(row, kTraitInput) || context.has_trait(row, kTraitOptimizer) ||
         context.has_trait(row, kTraitBackwardNode);
}

/// Rows at the top of a track, below ranges that wrap all of it.
std::vector<Row> top_rows(const TreeContext& context, const EventTree& tree, TrackId track) {
  const EventTable& table = context.table;
  std::vector<Row> rows = child_rows(tree, tree.host_offsets[track], tree.host_offsets[track + 1]);
  while (!rows.empty()) {
    const Row longest = *std::max_element(
        rows.begin(), rows.end(), [&](Row a, Row b) { return table.dur_ns[a] < table.dur_ns[b]; });
    const double span = static_cast<double>(table.end_ns(rows.back())) -
                        static_cast<double>(table.ts_ns[rows.front()]);
    if (static_cast<double>(table.dur_ns[longest]) < kWrapperShare * span) break;
    if (is_part_of_step(context, longest)) break;
    const std::uint32_t position = tree.host_position[longest];
    if (position + 1 == tree.subtree_end[position]) break;
    rows = child_rows(tree, position + 1, tree.subtree_end[position]);
  }
  std::erase_if(rows, [&](Row row) { return is_api_call(table.kind[row]); });
  return rows;
}

/// A sequence that repeats: whole repetitions [first, end()) within the rows [begin, stop) that
/// follow the pattern.
struct Pattern {
  std::size_t first = 0, period = 0, repetitions = 0;
  std::size_t begin = 0, stop = 0;
  std::size_t end() const { return first + period * repetitions; }
  std::size_t length() const { return stop - begin; }
};

/// Rows that go on with a pattern as far as they can: two of one period share less than a period.
class Stretches {
 public:
  void add(const Pattern& stretch) { stops_[{stretch.period, stretch.begin}] = stretch.stop; }

  bool contains(const Pattern& run) const {
    auto behind = stops_.upper_bound({run.period, run.first});
    if (behind == stops_.begin()) return false;
    const auto& [place, stop] = *--behind;
    return place.first == run.period && run.end() <= stop;
  }

 private:
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> stops_;  ///< by period and begin
};

class PatternFinder {
 public:
  PatternFinder(const TreeContext& context, const EventTree& tree, std::vector<Row> rows)
      : context_(context), table_(context.table), tree_(tree), rows_(std::move(rows)) {
    read_words();
    hash_prefixes();
  }

  const std::vector<Row>& rows() const { return rows_; }

  /// The one pattern of the sequence, or nothing.
  ///
  /// All words of a period lead to the same rows. Each stretch of rows is looked at once, so that
  /// the time is that of the rows times the stretches that cover one: O(log n) with 3 repetitions.
  std::optional<Pattern> find() const {
    std::optional<Pattern> best;
    Stretches seen;
    for (std::size_t word = 0; word + 1 < word_offsets_.size(); ++word) {
      const Pattern run = longest_run(word);
      if (run.repetitions < kMinRepetitions || seen.contains(run)) continue;
      const Pattern stretch = extended(run);
      seen.add(stretch);
      const Pattern pattern = rotated(stretch);
      if (pattern.repetitions < kMinRepetitions || !is_step(pattern)) continue;
      if (best && best->period != pattern.period) return std::nullopt;
      if (!best || pattern.length() > best->length()) best = pattern;
    }
    return best;
  }

 private:
  void read_words() {
    StringPool pool;
    std::vector<StringId> word_of(table_.strings.size(), kNoString);
    for (const Row row : rows_) {
      poll_interrupt();
      StringId& word = word_of[table_.name[row]];
      if (word == kNoString) word = pool.intern(without_numbers(table_.name_of(row)));
      words_.push_back(word);
    }
    CountingSort by_word(pool.size());
    for (const StringId word : words_) by_word.count(word);
    places_.resize(by_word.start_placing());
    for (std::uint32_t i = 0; i < words_.size(); ++i) places_[by_word.place(words_[i])] = i;
    word_offsets_ = by_word.take_offsets();
  }

  void hash_prefixes() {
    prefix_.assign(1, 0);
    powers_.assign(1, 1);
    for (const StringId word : words_) {
      poll_interrupt();
      prefix_.push_back(prefix_.back() * kBase + word + 1);
      powers_.push_back(powers_.back() * kBase);
    }
  }

  std::uint64_t hash(std::size_t begin, std::size_t length) const {
    return prefix_[begin + length] - prefix_[begin] * powers_[length];
  }

  bool equal(std::size_t a, std::size_t b, std::size_t length) const {
    return a + length <= words_.size() && b + length <= words_.size() &&
           hash(a, length) == hash(b, length);
  }

  /// The longest run of equal sequences that begin with `word`.
  Pattern longest_run(std::size_t word) const {
    Pattern best, run;
    for (std::size_t i = word_offsets_[word]; i + 1 < word_offsets_[word + 1]; ++i) {
      const std::size_t begin = places_[i], length = places_[i + 1] - places_[i];
      const bool continues =
          run.period == length && run.end() == begin && equal(run.first, begin, length);
      if (!continues) run = {begin, length, 0, begin, begin};
      ++run.repetitions;
      if (run.repetitions > best.repetitions) best = run;
    }
    return best;
  }

  /// With all rows before and behind that go on with the pattern.
  Pattern extended(Pattern pattern) const {
    pattern.begin = pattern.first;
    pattern.stop = pattern.end();
    while (pattern.begin > 0 &&
           words_[pattern.begin - 1] == words_[pattern.begin - 1 + pattern.period]) {
      --pattern.begin;
    }
    while (pattern.stop < words_.size() &&
           words_[pattern.stop] == words_[pattern.stop - pattern.period]) {
      ++pattern.stop;
    }
    return pattern;
  }

  /// Starting at the right place of the period. See Note [Inferred steps].
  Pattern rotated(Pattern pattern) const {
    const auto is_input = [&](std::size_t i) { return context_.has_trait(rows_[i], kTraitInput); };
    const auto is_update = [&](std::size_t i) {
      return table_.name_of(rows_[i]).starts_with("Optimizer.step#");
    };
    std::size_t shift = 0;
    if (const auto input = only_stretch(pattern, is_input)) {
      shift = input->first;
    } else if (const auto update = only_stretch(pattern, is_update)) {
      shift = update->second;
    }
    pattern.first = pattern.begin + shift;
    pattern.repetitions = (pattern.stop - pattern.first) / pattern.period;
    return pattern;
  }

  /// Where the rows of a period that `is_mark` begin and stop, if they stand side by side.
  template <class IsMark>
  std::optional<std::pair<std::size_t, std::size_t>> only_stretch(const Pattern& pattern,
                                                                  IsMark is_mark) const {
    std::pair<std::size_t, std::size_t> stretch{0, 0};
    std::size_t begins = 0;
    for (std::size_t i = 0; i < pattern.period; ++i) {
      const bool now = is_mark(pattern.begin + i);
      const bool next = is_mark(pattern.begin + (i + 1) % pattern.period);
      begins += !now && next;
      if (!now && next) stretch.first = (i + 1) % pattern.period;
      if (now && !next) stretch.second = (i + 1) % pattern.period;
    }
    return begins == 1 ? std::optional(stretch) : std::nullopt;
  }

  std::int64_t start_ns(std::size_t i) const { return table_.ts_ns[rows_[i]]; }
  double span(std::size_t begin, std::size_t end) const {
    return static_cast<double>(table_.end_ns(rows_[end - 1])) -
           static_cast<double>(start_ns(begin));
  }

  bool is_step(const Pattern& pattern) const {
    if (!durations_alike(pattern) || only_updates(pattern)) return false;
    if (!is_marked(pattern)) {
      return pattern.period >= kMinPlainRows && pattern.length() == rows_.size();
    }
    const double rows = static_cast<double>(pattern.length()) / static_cast<double>(rows_.size());
    const double time = span(pattern.begin, pattern.stop) / span(0, rows_.size());
    return std::max(rows, time) >= kMinCoverage;
  }

  /// Is the pattern a loop over parameters? See Note [Inferred steps].
  bool only_updates(const Pattern& pattern) const {
    bool backward = false, optimizer = false, in_place = false, glue = false;
    for (std::size_t i = pattern.first; i < pattern.first + pattern.period; ++i) {
      const Phase phase = tree_.phase[rows_[i]];
      backward = backward || phase == Phase::kBackward;
      optimizer = optimizer || phase == Phase::kOptimizer;
      if (phase == Phase::kBackward || phase == Phase::kOptimizer) continue;
      const UpdateWord word = classify_update(table_.name_of(rows_[i]));
      if (!word.is_arithmetic && !word.is_glue) return false;
      in_place = in_place || word.in_place;
      glue = glue || word.is_glue;
    }
    if (backward) return true;
    // A copy between calls of an optimizer may be all that is seen of a replayed CUDA graph.
    return optimizer ? !glue : in_place;
  }

  /// Does the pattern hold an annotation of a training loop?
  bool is_marked(const Pattern& pattern) const {
    for (std::size_t i = pattern.first; i < pattern.first + pattern.period; ++i) {
      const NameTraits traits = context_.traits_of(rows_[i]);
      if (traits & (kTraitInput | kTraitOptimizer)) return true;
      const bool annotation = table_.kind[rows_[i]] == EventKind::kUserAnnotation;
      if (annotation && (traits & kTraitStepWord)) return true;
    }
    return false;
  }

  bool durations_alike(const Pattern& pattern) const {
    std::vector<double> durations;
    for (std::size_t i = 1; i < pattern.repetitions; ++i) {
      poll_interrupt();
      const std::size_t begin = pattern.first + i * pattern.period;
      durations.push_back(span(begin, begin + pattern.period));
    }
    const double median = median_of(durations);
    const auto outliers = std::count_if(durations.begin(), durations.end(), [&](double duration) {
      return duration > kMaxDurationRatio * median || kMaxDurationRatio * duration < median;
    });
    return static_cast<std::size_t>(outliers) <= durations.size() / kDurationsPerOutlier;
  }

  static constexpr std::uint64_t kBase = 0x9e3779b97f4a7c15;

  const TreeContext& context_;
  const EventTable& table_;
  const EventTree& tree_;
  std::vector<Row> rows_;
  std::vector<StringId> words_;              ///< per row: its name without numbers
  std::vector<std::uint32_t> word_offsets_;  ///< per word, into places_
  std::vector<std::uint32_t> places_;        ///< indices into rows_
  std::vector<std::uint64_t> prefix_, powers_;
};

/// An annotation that stands for a whole step, not for a part of it.
bool is_step_annotation(const TreeContext& context, Row row) {
  const NameTraits traits = context.traits_of(row);
  return context.table.kind[row] == EventKind::kUserAnnotation && (traits & kTraitStepWord) != 0 &&
         (traits & (kTraitInput | kTraitOptimizer)) == 0;
}

Step make_step(const TreeContext& context, const std::vector<Row>& rows, const Pattern& pattern,
               std::size_t i) {
  const EventTable& table = context.table;
  const std::size_t begin = pattern.first + i * pattern.period;
  const Row first = rows[begin];
  const bool last = begin + pattern.period == rows.size();
  const std::int64_t next_ns =
      last ? table.end_ns(rows.back()) : table.ts_ns[rows[begin + pattern.period]];
  if (pattern.period == 1 && is_step_annotation(context, first)) {
    // Ranges of one thread may cross in a damaged trace; steps don't overlap.
    const std::int64_t end_ns = std::min(table.end_ns(first), next_ns);
    return {std::string(table.name_of(first)), table.ts_ns[first], end_ns, first};
  }
  return {"step " + std::to_string(i), table.ts_ns[first], next_ns, kNoRow};
}

void add_steps(const TreeContext& context, EventTree& tree, const PatternFinder& finder,
               const Pattern& pattern) {
  for (std::size_t i = 0; i < pattern.repetitions; ++i) {
    poll_interrupt();
    tree.steps.push_back(make_step(context, finder.rows(), pattern, i));
  }
  tree.steps_inferred = true;
  tree.diagnostics.add("inferred_steps",
                       "The trace has no ProfilerStep marks; its steps were taken from the pattern "
                       "that the main thread repeats.",
                       pattern.repetitions);
}

bool is_loop_mark(const TreeContext& context, Row row) {
  const EventKind kind = context.table.kind[row];
  if (kind != EventKind::kUserAnnotation && kind != EventKind::kCpuOp) return false;
  return is_step_annotation(context, row) ||
         context.table.name_of(row).starts_with("enumerate(DataLoader)");
}

/// Where the ops of a loop vary, its fetches or its own annotations may still repeat evenly.
void infer_from_marks(const TreeContext& context, EventTree& tree, std::vector<Row> rows) {
  std::erase_if(rows, [&](Row row) { return !is_loop_mark(context, row); });
  const PatternFinder finder(context, tree, std::move(rows));
  std::optional<Pattern> pattern = finder.find();
  if (!pattern) return;
  // What follows the last fetch, a step or the end of the loop, can't be told.
  const bool own_extent = is_step_annotation(context, finder.rows()[pattern->first]);
  if (!own_extent && pattern->end() == finder.rows().size()) --pattern->repetitions;
  if (pattern->repetitions >= kMinRepetitions) add_steps(context, tree, finder, *pattern);
}

/// Takes the iterations that a serving engine marked for steps.
bool add_iterations(const TreeContext& context, EventTree& tree) {
  const EventTable& table = context.table;
  const std::vector<Row> rows = find_iterations(table, tree);
  if (rows.empty()) return false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row row = rows[i];
    std::int64_t end_ns = table.end_ns(row);
    if (i + 1 < rows.size()) end_ns = std::min(end_ns, table.ts_ns[rows[i + 1]]);
    const std::string_view name = table.name_of(row);
    tree.steps.push_back(
        {std::string(name), table.ts_ns[row], end_ns, row, read_iteration_name(name)->phase});
  }
  tree.steps_inferred = true;
  tree.diagnostics.add("inferred_steps",
                       "The trace has no ProfilerStep marks; its steps are the iterations that the "
                       "serving engine marked.",
                       rows.size());
  return true;
}

}  // namespace

void infer_steps(const TreeContext& context, EventTree& tree) {
  if (!tree.steps.empty() || tree.main_track == kNoTrack) return;
  if (add_iterations(context, tree)) return;
  std::vector<Row> rows = top_rows(context, tree, tree.main_track);
  const PatternFinder finder(context, tree, rows);
  if (const std::optional<Pattern> pattern = finder.find()) {
    add_steps(context, tree, finder, *pattern);
  } else {
    infer_from_marks(context, tree, std::move(rows));
  }
}

}  // namespace traceap
