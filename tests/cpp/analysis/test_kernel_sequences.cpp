#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "analysis/analysed.hpp"
#include "catch.hpp"
#include "traceap/analysis/costs/kernel_sequences.hpp"
#include "traceap/base/error.hpp"

using namespace traceap;

namespace {

/// One kernel per letter on stream 7, 10 us each, 2 us apart, launched by calls of 5 us; a blank is
/// a gap of 5 ms. Letters are the symbols; '.' has none.
struct Letters {
  explicit Letters(const std::string& letters) : a(trace(letters)) {
    for (const Row row : a.tree.gpu_rows) {
      const char letter = a.name(row)[0];
      symbols.push_back(letter == '.' ? -1 : letter);
    }
  }
  static TraceText trace(const std::string& letters) {
    TraceText text;
    text.host("cpu_op", "aten::add", 0, 1);
    double at_us = 1000;
    int id = 0;
    for (const char letter : letters) {
      if (letter == ' ') {
        at_us += 5000;
        continue;
      }
      text.launch(std::string(1, letter), at_us - 100, 5, at_us, 10, 7, ++id);
      at_us += 12;
    }
    return text;
  }
  KernelSequences find(SequenceOptions options = {}) const {
    return find_kernel_sequences(a.table, a.tree, symbols, options);
  }
  std::string text(const KernelSequences& found, const KernelSequence& sequence) const {
    std::string text;
    for (const Row row : found.kernels_of(sequence)) text += a.name(row);
    return text;
  }
  /// "abc x2" for each sequence, sorted.
  std::set<std::string> found(SequenceOptions options = {}) const {
    std::set<std::string> lines;
    const KernelSequences found = find(options);
    for (const KernelSequence& s : found.sequences) {
      lines.insert(text(found, s) + " x" + std::to_string(s.count));
    }
    return lines;
  }
  Analysed a;
  std::vector<std::int32_t> symbols;
};

using Lines = std::set<std::string>;

/// The definition, by trying every substring of every piece.
Lines brute_force(const std::vector<std::string>& pieces, std::size_t longest) {
  std::map<std::string, std::size_t> overlapping;
  for (const std::string& piece : pieces) {
    for (std::size_t i = 0; i < piece.size(); ++i) {
      for (std::size_t n = 1; n <= longest && i + n <= piece.size(); ++n) {
        ++overlapping[piece.substr(i, n)];
      }
    }
  }
  Lines lines;
  for (const auto& entry : overlapping) {
    const std::string& text = entry.first;
    const std::size_t count = entry.second;
    const std::size_t n = text.size();
    if (n < 2) continue;
    bool maximal = true;
    for (char c = 'a'; c <= 'z'; ++c) {
      const auto same = [&](const std::string& wider) {
        std::size_t wider_count = 0;
        for (const std::string& piece : pieces) {
          for (std::size_t i = piece.find(wider); i != std::string::npos;
               i = piece.find(wider, i + 1)) {
            ++wider_count;
          }
        }
        return wider_count == count;
      };
      if (same(c + text) || (n < longest && same(text + c))) maximal = false;
    }
    bool periodic = false;
    for (std::size_t p = 1; n > 2 && 2 * p <= n; ++p) {
      periodic = periodic || text.substr(p) == text.substr(0, n - p);
    }
    std::size_t separate = 0;
    for (const std::string& piece : pieces) {
      for (std::size_t i = piece.find(text); i != std::string::npos; i = piece.find(text, i + n)) {
        ++separate;
      }
    }
    if (maximal && !periodic && separate >= 2) lines.insert(text + " x" + std::to_string(separate));
  }
  return lines;
}

}  // namespace

TEST_CASE("repeated sequences are maximal", "[sequences]") {
  CHECK(Letters("abcxabcyabc").found() == Lines{"abc x3"});
  CHECK(Letters("abcxabcyab").found() == Lines{"abc x2", "ab x3"});
  CHECK(Letters("abcdef").found().empty());
  CHECK(Letters("").found().empty());
  CHECK(Letters("a").found().empty());
}

TEST_CASE("a part that repeats stands for its repetitions", "[sequences]") {
  CHECK(Letters("abcabcabcabc").found().count("abc x4") == 1);
  CHECK(Letters("abcabcabcabc").found().count("abcabc x2") == 0);
  CHECK(Letters("aaaaaa").found() == Lines{"aa x3"});
}

TEST_CASE("gaps and kernels without a symbol part sequences", "[sequences]") {
  CHECK(Letters("ab abx aby").found() == Lines{"ab x3"});
  CHECK(Letters("a b a b").found().empty());
  CHECK(Letters("a.b.a.b").found().empty());
}

TEST_CASE("a length chosen by the user", "[sequences]") {
  SequenceOptions options;
  options.length = 2;
  CHECK(Letters("abcxabcyabc").found(options) == Lines{"ab x3"});
  options.length = 3;
  CHECK(Letters("abcxabcyab").found(options) == Lines{"abc x2"});
  options.length = 100;
  CHECK(Letters("abcxabcyab").found(options).empty());
  options.length = 1;
  CHECK_THROWS_AS(Letters("abab").find(options), OptionError);
}

TEST_CASE("what fusing would remove", "[sequences]") {
  const Letters letters("abcxabcy");
  const auto sequences = letters.find().sequences;
  REQUIRE(sequences.size() == 1);
  const KernelSequence& s = sequences.front();
  CHECK(s.gpu_ns == 60'000);       // 6 kernels of 10 us
  CHECK(s.gap_ns == 8'000);        // 2 gaps of 2 us, twice
  CHECK(s.launches == 4);          // all but the first of each
  CHECK(s.launch_ns == 20'000);    // of 5 us
  CHECK(s.removable_ns == 8'000);  // the calls returned long before: only the gaps
  CHECK(s.op == kNoRow);
  CHECK(letters.a.name(s.first_row) == "a");
}

TEST_CASE("where the host is late, its calls count", "[sequences]") {
  TraceText text;
  for (int i = 0; i < 4; ++i) {
    const double at = 100.0 * i;  // the stream runs dry at 12 us, the second call returns at 14 us
    text.launch("a", at, 2, at + 4, 8, 7, 2 * i + 1);
    text.launch("b", at + 5, 9, at + 13, 8, 7, 2 * i + 2);
  }
  const Analysed a(text);
  const std::vector<std::int32_t> symbols{0, 1, 0, 1, 0, 1, 0, 1};
  SequenceOptions options;
  options.length = 2;
  options.max_gap_ns = 10'000;
  const auto found = find_kernel_sequences(a.table, a.tree, symbols, options);
  const auto& sequences = found.sequences;
  REQUIRE(sequences.size() == 1);
  CHECK(sequences[0].gap_ns == 4'000);         // 1 us, four times
  CHECK(sequences[0].removable_ns == 36'000);  // the calls of 9 us
}

TEST_CASE("kernels of a graph have no launch of their own", "[sequences]") {
  TraceText text;
  text.host("cuda_runtime", "cudaGraphLaunch", 0, 5, R"("correlation":1)");
  for (int i = 0; i < 4; ++i) {
    text.gpu("kernel", i % 2 == 0 ? "a" : "b", 10 + 10 * i, 5, 7, 1);
  }
  const Analysed a(text);
  const std::vector<std::int32_t> symbols{0, 1, 0, 1};
  const auto found = find_kernel_sequences(a.table, a.tree, symbols);
  const auto& sequences = found.sequences;
  REQUIRE(sequences.size() == 1);
  CHECK(sequences[0].launches == 0);
  CHECK(sequences[0].launch_ns == 0);
  CHECK(sequences[0].gap_ns == 10'000);
}

TEST_CASE("the op that launches a whole sequence", "[sequences]") {
  TraceText text;
  for (int i = 0; i < 3; ++i) {
    const double at = 100.0 * i;
    text.host("cpu_op", "aten::layer_norm", at, 50).host("cpu_op", "aten::inner", at + 1, 10);
    text.launch("a", at + 2, 2, at + 20, 5, 7, 10 * i + 1);
    text.launch("b", at + 12, 2, at + 26, 5, 7, 10 * i + 2);
    text.launch(std::string("other") + std::to_string(i), at + 60, 2, at + 70, 5, 7, 10 * i + 3);
  }
  const Analysed a(text);
  const std::vector<std::int32_t> symbols{0, 1, 10, 0, 1, 11, 0, 1, 12};
  const auto found = find_kernel_sequences(a.table, a.tree, symbols);
  const auto& sequences = found.sequences;
  REQUIRE(sequences.size() == 1);
  CHECK(sequences[0].count == 3);
  CHECK(a.name(sequences[0].op) == "aten::layer_norm");
}

TEST_CASE("occurrences without a launch say nothing about the op", "[sequences]") {
  TraceText text;
  text.gpu("kernel", "a", 1, 5, 7, 900).gpu("kernel", "b", 7, 5, 7, 901);
  text.gpu("kernel", "other", 13, 1, 7, 902);
  for (int i = 1; i < 3; ++i) {
    const double at = 100.0 * i;
    text.host("cpu_op", "aten::layer_norm", at, 50);
    text.launch("a", at + 2, 2, at + 20, 5, 7, 10 * i + 1);
    text.launch("b", at + 12, 2, at + 26, 5, 7, 10 * i + 2);
  }
  const Analysed a(text);
  const std::vector<std::int32_t> symbols{0, 1, 2, 0, 1, 0, 1};
  const auto found = find_kernel_sequences(a.table, a.tree, symbols);
  const auto& sequences = found.sequences;
  REQUIRE(sequences.size() == 1);
  CHECK(sequences[0].count == 3);
  CHECK(a.name(sequences[0].op) == "aten::layer_norm");
  CHECK(a.tree.launch[found.kernels_of(sequences[0])[0]] != kNoRow);
  CHECK(a.tree.launch[sequences[0].first_row] == kNoRow);
}

TEST_CASE("no sequence reaches over the border of a step", "[sequences]") {
  TraceText text;
  for (int i = 0; i < 3; ++i) {
    const double at = 100.0 * i;
    text.host("user_annotation", "ProfilerStep#" + std::to_string(i), at, 100);
    text.launch("b", at + 10, 2, at + 30, 5, 7, 10 * i + 1);
    text.launch("a", at + 80, 2, at + 90, 5, 7, 10 * i + 2);
  }
  const Analysed a(text);
  const std::vector<std::int32_t> symbols{1, 0, 1, 0, 1, 0};
  const auto found = find_kernel_sequences(a.table, a.tree, symbols);
  const auto& sequences = found.sequences;
  REQUIRE(sequences.size() == 1);
  CHECK(sequences[0].count == 3);
  CHECK(a.name(found.kernels_of(sequences[0])[0]) == "b");  // never a, then b of the next step
}

TEST_CASE("symbols must fit the events", "[sequences]") {
  const Letters letters("abab");
  const std::vector<std::int32_t> symbols{1, 2};
  CHECK_THROWS_AS(find_kernel_sequences(letters.a.table, letters.a.tree, symbols), SchemaError);
}

TEST_CASE("the most removable come first and the rest is cut", "[sequences]") {
  const Letters letters("abcdxabcdyabqabrcd");
  const auto all = letters.find();
  REQUIRE(all.sequences.size() >= 2);
  for (std::size_t i = 1; i < all.sequences.size(); ++i) {
    CHECK(all.sequences[i - 1].removable_ns >= all.sequences[i].removable_ns);
  }
  SequenceOptions options;
  options.limit = 1;
  REQUIRE(letters.find(options).sequences.size() == 1);
  const auto first = letters.find(options);
  CHECK(letters.text(first, first.sequences[0]) == letters.text(all, all.sequences[0]));
}

TEST_CASE("what a row above all but covers is left out", "[sequences]") {
  // abcd twenty times, once as bcd alone, once as abc alone: shifts and cuts of the same kernels.
  std::string text;
  for (int i = 0; i < 20; ++i) text += std::string("abcd") + static_cast<char>('e' + i);
  text +=
      "bcd"
      "yabcz";
  SequenceOptions options;
  CHECK(Letters(text).found(options) == Lines{"abcd x20"});
  options.drop_similar = false;
  CHECK(Letters(text).found(options) == Lines{"abcd x20", "bcd x21", "abc x21", "bc x22"});
  // Far more often is another matter.
  options.drop_similar = true;
  for (int i = 0; i < 10; ++i) text += std::string("bc") + static_cast<char>('A' + i);
  CHECK(Letters(text).found(options) == Lines{"abcd x20", "bc x32"});
}

TEST_CASE("random texts give what trying every substring gives", "[sequences]") {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const auto letters = 1 + random() % 4;
    std::vector<std::string> pieces(1 + random() % 3);
    std::string text;
    for (std::string& piece : pieces) {
      for (std::size_t i = 0, n = random() % 25; i < n; ++i) {
        piece += static_cast<char>('a' + static_cast<int>(random() % letters));
      }
      text += (text.empty() ? "" : " ") + piece;
    }
    SequenceOptions options;
    options.max_length = 2 + static_cast<std::uint32_t>(random() % 9);
    options.limit = 10'000;
    options.drop_similar = false;
    CAPTURE(text, options.max_length);
    CHECK(Letters(text).found(options) == brute_force(pieces, options.max_length));
  }
}

TEST_CASE("long runs of one kernel take no longer than other texts", "[sequences]") {
  // Quadratic work would take hours here.
  const std::size_t kernels = 20'000;
  const Letters letters(std::string(kernels, 'a'));
  CHECK(letters.found() == Lines{"aa x10000"});
  std::string pattern;
  while (pattern.size() < kernels) pattern += "abcdefghij";
  CHECK(Letters(pattern).found().count("abcdefghij x2000") == 1);
}
