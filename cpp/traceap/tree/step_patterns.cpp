// Steps where nobody called profiler.step(): the repeated pattern of the main thread.
//
// Note [Inferred steps]: the rows at the top of the main thread (below ranges that wrap all of it)
// are read as a sequence of names without their numbers. A name is a border if the sequences
// between its occurrences are the same at least 3 times in a row. All borders must agree on one
// period; then the pattern still has to show that it is a step and not, say, a layer: it holds an
// optimizer, loader or step annotation and covers most of the thread's time, or it is at least
// kMinPlainRows long and the whole thread is nothing but this pattern, cut off at both ends. Its
// durations must be alike. Everything else counts as ambiguous and leaves the trace without steps.

#include <algorithm>
#include <optional>
#include <string>

#include "traceap/tree/build_parts.hpp"

namespace traceap {

namespace {

constexpr std::size_t kMinRepetitions = 3;
// Set-up and clean-up may take this part of the time around the steps.
constexpr double kMinCoverage = 0.75;
// A pattern without any mark: layers repeat too, but rarely as the whole thread and with so many
// ops.
constexpr std::size_t kMinPlainRows = 8;
// The first repetition warms up; all others take at most this many times more or less than the
// median.
constexpr double kMaxDurationRatio = 2.0;
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

/// Rows at the top of a track, below ranges that wrap all of it.
std::vector<Row> top_rows(const EventTable& table, const EventTree& tree, TrackId track) {
  std::vector<Row> rows = child_rows(tree, tree.host_offsets[track], tree.host_offsets[track + 1]);
  while (!rows.empty()) {
    const Row longest = *std::max_element(
        rows.begin(), rows.end(), [&](Row a, Row b) { return table.dur_ns[a] < table.dur_ns[b]; });
    const double span = static_cast<double>(table.end_ns(rows.back())) -
                        static_cast<double>(table.ts_ns[rows.front()]);
    if (static_cast<double>(table.dur_ns[longest]) < kWrapperShare * span) break;
    const std::uint32_t position = tree.host_position[longest];
    if (position + 1 == tree.subtree_end[position]) break;
    rows = child_rows(tree, position + 1, tree.subtree_end[position]);
  }
  std::erase_if(rows, [&](Row row) { return is_api_call(table.kind[row]); });
  return rows;
}

/// A sequence that repeats: rows [first, first + period * repetitions) of the top rows.
struct Pattern {
  std::size_t first = 0, period = 0, repetitions = 0;
  std::size_t end() const { return first + period * repetitions; }
};

class PatternFinder {
 public:
  PatternFinder(const TreeContext& context, std::vector<Row> rows)
      : context_(context), table_(context.table), rows_(std::move(rows)) {
    read_words();
    hash_prefixes();
  }

  const std::vector<Row>& rows() const { return rows_; }

  /// The one pattern of the sequence, or nothing.
  std::optional<Pattern> find() const {
    std::optional<Pattern> best;
    for (std::size_t word = 0; word + 1 < word_offsets_.size(); ++word) {
      const Pattern pattern = longest_run(word);
      if (pattern.repetitions < kMinRepetitions || !is_step(pattern)) continue;
      if (best && best->period != pattern.period) return std::nullopt;
      if (!best || begins_better(pattern, *best)) best = pattern;
    }
    return best;
  }

 private:
  void read_words() {
    StringPool pool;
    std::vector<StringId> word_of(table_.strings.size(), kNoString);
    for (const Row row : rows_) {
      StringId& word = word_of[table_.name[row]];
      if (word == kNoString) word = pool.intern(without_numbers(table_.name_of(row)));
      words_.push_back(word);
    }
    word_offsets_.assign(pool.size() + 1, 0);
    for (const StringId word : words_) ++word_offsets_[word];
    std::uint32_t end = 0;
    for (std::uint32_t& offset : word_offsets_) offset = end += offset;
    places_.resize(words_.size());
    for (std::size_t i = words_.size(); i-- > 0;) {
      places_[--word_offsets_[words_[i]]] = static_cast<std::uint32_t>(i);
    }
  }

  void hash_prefixes() {
    prefix_.assign(1, 0);
    powers_.assign(1, 1);
    for (const StringId word : words_) {
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
      if (!continues) run = {begin, length, 0};
      ++run.repetitions;
      if (run.repetitions > best.repetitions) best = run;
    }
    // What follows the last occurrence may be one more repetition.
    const bool more = best.period > 0 && equal(best.first, best.end(), best.period);
    best.repetitions += more;
    return best;
  }

  std::int64_t start_ns(std::size_t i) const { return table_.ts_ns[rows_[i]]; }
  double span(std::size_t begin, std::size_t end) const {
    return static_cast<double>(table_.end_ns(rows_[end - 1])) -
           static_cast<double>(start_ns(begin));
  }

  bool is_step(const Pattern& pattern) const {
    if (!durations_alike(pattern)) return false;
    if (!is_marked(pattern)) return is_everything(pattern);
    return span(pattern.first, pattern.end()) >= kMinCoverage * span(0, rows_.size());
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

  /// Is the whole sequence this pattern, with a part of it before and behind?
  bool is_everything(const Pattern& pattern) const {
    if (pattern.period < kMinPlainRows) return false;
    const std::size_t before = pattern.first, behind = words_.size() - pattern.end();
    return before < pattern.period && behind < pattern.period &&
           equal(0, pattern.first + pattern.period - before, before) &&
           equal(pattern.end(), pattern.first, behind);
  }

  bool durations_alike(const Pattern& pattern) const {
    std::vector<double> durations;
    for (std::size_t i = 1; i < pattern.repetitions; ++i) {
      const std::size_t begin = pattern.first + i * pattern.period;
      durations.push_back(span(begin, begin + pattern.period));
    }
    std::sort(durations.begin(), durations.end());
    const double median = durations[durations.size() / 2];
    return durations.back() <= kMaxDurationRatio * median &&
           median <= kMaxDurationRatio * durations.front();
  }

  /// A loop begins with fetching its batch; otherwise where the recording first shows it.
  bool begins_better(const Pattern& a, const Pattern& b) const {
    const bool a_input = context_.has_trait(rows_[a.first], kTraitInput);
    const bool b_input = context_.has_trait(rows_[b.first], kTraitInput);
    return a_input != b_input ? a_input : a.first < b.first;
  }

  static constexpr std::uint64_t kBase = 0x9e3779b97f4a7c15;

  const TreeContext& context_;
  const EventTable& table_;
  std::vector<Row> rows_;
  std::vector<StringId> words_;              ///< per row: its name without numbers
  std::vector<std::uint32_t> word_offsets_;  ///< per word, into places_
  std::vector<std::uint32_t> places_;        ///< indices into rows_
  std::vector<std::uint64_t> prefix_, powers_;
};

Step make_step(const EventTable& table, const std::vector<Row>& rows, const Pattern& pattern,
               std::size_t i) {
  const std::size_t begin = pattern.first + i * pattern.period;
  const Row first = rows[begin];
  if (pattern.period == 1) {
    return {std::string(table.name_of(first)), table.ts_ns[first], table.end_ns(first), first};
  }
  const bool last = i + 1 == pattern.repetitions;
  const std::int64_t end_ns = last ? table.end_ns(rows[begin + pattern.period - 1])
                                   : table.ts_ns[rows[begin + pattern.period]];
  return {"step " + std::to_string(i), table.ts_ns[first], end_ns, kNoRow};
}

}  // namespace

void infer_steps(const TreeContext& context, EventTree& tree) {
  if (!tree.steps.empty() || tree.main_track == kNoTrack) return;
  const PatternFinder finder(context, top_rows(context.table, tree, tree.main_track));
  const std::optional<Pattern> pattern = finder.find();
  if (!pattern) return;
  for (std::size_t i = 0; i < pattern->repetitions; ++i) {
    tree.steps.push_back(make_step(context.table, finder.rows(), *pattern, i));
  }
  tree.steps_inferred = true;
  tree.diagnostics.add("inferred_steps",
                       "The trace has no ProfilerStep marks; its steps were taken from the pattern "
                       "that the main thread repeats.",
                       pattern->repetitions);
}

}  // namespace traceap
