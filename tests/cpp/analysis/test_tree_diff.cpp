#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include "analysed.hpp"
#include "catch.hpp"
#include "traceap/analysis/compare/comparable_names.hpp"
#include "traceap/analysis/compare/sequence_alignment.hpp"
#include "traceap/analysis/compare/tree_diff.hpp"
#include "traceap/analysis/idle/step_pieces.hpp"

using namespace traceap;

namespace {

// ---------------------------------------------------------------------------------- sequences

std::vector<AlignKeys> named(const std::string& letters) {
  std::vector<AlignKeys> keys;
  for (const char c : letters) {
    const auto key = static_cast<std::uint64_t>(c);
    keys.push_back({key, key, key});
  }
  return keys;
}

std::string aligned(const std::string& a, const std::string& b) {
  const std::vector<std::uint32_t> partner = align_sequences(named(a), named(b));
  std::string common;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (partner[i] == kUnaligned) continue;
    REQUIRE(b[partner[i]] == a[i]);
    common += a[i];
  }
  return common;
}

/// Partners rise and have equal names; returns how many there are.
std::size_t check_alignment(const std::vector<AlignKeys>& a, const std::vector<AlignKeys>& b) {
  const std::vector<std::uint32_t> partner = align_sequences(a, b);
  REQUIRE(partner.size() == a.size());
  std::size_t count = 0;
  std::int64_t last = -1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (partner[i] == kUnaligned) continue;
    REQUIRE(partner[i] < b.size());
    REQUIRE(static_cast<std::int64_t>(partner[i]) > last);
    REQUIRE(a[i].name == b[partner[i]].name);
    last = partner[i];
    ++count;
  }
  return count;
}

/// Items with few names, some details, in random order.
std::vector<AlignKeys> random_items(std::mt19937& random, std::size_t size, std::uint64_t names) {
  std::vector<AlignKeys> items;
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint64_t name = random() % names, detail = name * 8 + random() % 2;
    items.push_back({detail * 8 + random() % 2, detail, name});
  }
  return items;
}

std::size_t longest_common(const std::vector<AlignKeys>& a, const std::vector<AlignKeys>& b) {
  std::vector<std::vector<std::size_t>> best(a.size() + 1,
                                             std::vector<std::size_t>(b.size() + 1, 0));
  for (std::size_t i = a.size(); i-- > 0;) {
    for (std::size_t j = b.size(); j-- > 0;) {
      best[i][j] = a[i].name == b[j].name ? best[i + 1][j + 1] + 1
                                          : std::max(best[i + 1][j], best[i][j + 1]);
    }
  }
  return best[0][0];
}

// ---------------------------------------------------------------------------------- trees

/// Operators of one thread with a kernel in each leaf; times follow from the order.
class Program {
 public:
  Program& op(const std::string& name, const std::string& dims = "") {
    open_.push_back({name, dims, clock_});
    clock_ += 1;
    return *this;
  }
  Program& kernel() {
    ++correlation_;
    text_.launch("kernel", clock_, 2, 1000 + clock_, 3, 7, correlation_);
    clock_ += 4;
    return *this;
  }
  Program& end() {
    const Open open = open_.back();
    open_.pop_back();
    clock_ += 1;
    const std::string category = open.name.starts_with("nn.Module") ? "python_function" : "cpu_op";
    text_.host(category, open.name, open.start, clock_ - open.start,
               open.dims.empty() ? "" : "\"Input Dims\":" + open.dims);
    clock_ += 1;
    return *this;
  }
  /// A leaf with one kernel.
  Program& leaf(const std::string& name, const std::string& dims = "") {
    return op(name, dims).kernel().end();
  }
  TraceText text() const { return text_; }

 private:
  struct Open {
    std::string name, dims;
    double start;
  };
  TraceText text_;
  std::vector<Open> open_;
  double clock_ = 0;
  int correlation_ = 0;
};

struct RecordedProgram : Analysed {
  GpuCosts costs;
  std::vector<std::int32_t> dims;
  explicit RecordedProgram(const TraceText& text)
      : Analysed(text), costs(build_gpu_costs(table, tree)), dims(table.size(), -1) {
    const ArgReader reader(table, "Input Dims");
    for (Row row = 0; row < table.size(); ++row) {
      if (const auto text_of = reader.text(row)) {
        static StringPool texts;
        dims[row] = static_cast<std::int32_t>(texts.intern(*text_of));
      }
    }
  }
  explicit RecordedProgram(const Program& program) : RecordedProgram(program.text()) {}
  DiffSide side() const { return {table, tree, costs, dims}; }
};

/// Nodes as "depth before after how", in order.
std::vector<std::string> describe(const RecordedProgram& a, const RecordedProgram& b) {
  const DiffPair pair{a.side(), b.side()};
  const TreeDiff diff = build_tree_diff({&pair, 1});
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < diff.before_row.size(); ++i) {
    static const char* const kHow[]{"shape", "name", "position", "unmatched"};
    const auto name = [](const RecordedProgram& r, Row row) {
      return row == kNoRow ? "-" : r.name(row);
    };
    lines.push_back(std::to_string(diff.depth[i]) + " " + name(a, diff.before_row[i]) + " " +
                    name(b, diff.after_row[i]) + " " +
                    kHow[static_cast<std::size_t>(diff.matched_by[i])]);
  }
  return lines;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("sequences: what is inserted or missing is left out") {
  CHECK(aligned("abcde", "abcde") == "abcde");
  CHECK(aligned("abcde", "acde") == "acde");
  CHECK(aligned("ace", "abcde") == "ace");
  CHECK(aligned("", "abc").empty());
  CHECK(aligned("abc", "xyz").empty());
  CHECK(aligned("aabbaabb", "aabbaabb") == "aabbaabb");
}

TEST_CASE("sequences: details decide between equal names") {
  // Three of one name; the one in the middle went.
  const std::vector<AlignKeys> a{{1, 1, 7}, {2, 2, 7}, {3, 3, 7}}, b{{1, 1, 7}, {3, 3, 7}};
  CHECK(align_sequences(a, b) == std::vector<std::uint32_t>{0, kUnaligned, 1});
}

TEST_CASE("sequences: small ones are aligned as well as can be") {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    // Without anchors to cut at (every name repeats) the alignment is a longest common subsequence.
    std::vector<AlignKeys> a = random_items(random, 5 + random() % 20, 3);
    std::vector<AlignKeys> b = random_items(random, 5 + random() % 20, 3);
    for (AlignKeys& key : a) key = {key.name, key.name, key.name};
    for (AlignKeys& key : b) key = {key.name, key.name, key.name};
    const std::size_t found = check_alignment(a, b);
    CHECK(found <= longest_common(a, b));
    CHECK(found + 2 >= longest_common(a, b));  // an anchor may cost a pair or two
  }
}

TEST_CASE("sequences: large ones, alike and not") {
  std::mt19937 random(11);
  std::vector<AlignKeys> a = random_items(random, 5000, 4), b = a;
  for (int edit = 0; edit < 100; ++edit) {
    b.erase(b.begin() + static_cast<std::ptrdiff_t>(random() % b.size()));
  }
  CHECK(check_alignment(a, b) == b.size());  // by edits: nothing but what was taken out is missing
  check_alignment(a, random_items(random, 5000, 4));  // beyond the bound on edits
  check_alignment(a, random_items(random, 3, 4));
}

TEST_CASE("names: what counts calls or names addresses goes") {
  CHECK(comparable_name("ProfilerStep#12") == "ProfilerStep#");
  CHECK(comparable_name("nn.Module: Linear_3") == "nn.Module: Linear");
  CHECK(comparable_name("triton_poi_fused_add_12") == "triton_poi_fused_add");
  CHECK(comparable_name("Torch-Compiled Region: 0/1") == "Torch-Compiled Region: #/#");
  CHECK(comparable_name("train.py(17): step") == "train.py: step");
  CHECK(comparable_name("<bound method at 0x7f01ab>") == "<bound method at 0x>");
  CHECK(comparable_name("aten::conv2d") == "aten::conv2d");
  CHECK(comparable_name("AddmmBackward0") == "AddmmBackward0");
  CHECK(comparable_name("## Call CompiledFxGraph fk2x5c3o6mzn7q2dwpuyf4ykxprsxd4h72qkt6j ##") ==
        "## Call CompiledFxGraph # ##");
  CHECK(comparable_name("") == "");
  CHECK(comparable_name("_7") == "_7");
  CHECK(vendor_free_name("hipExtModuleLaunchKernel") == vendor_free_name("cudaLaunchKernel"));
  CHECK(vendor_free_name("cuLaunchKernelEx") == vendor_free_name("cudaLaunchKernel"));
  CHECK(vendor_free_name("hipMemcpyWithStream") == vendor_free_name("cudaMemcpyAsync"));
  CHECK(vendor_free_name("hipDeviceSynchronize") == vendor_free_name("cudaDeviceSynchronize"));
  CHECK(vendor_free_name("cudaMalloc") != vendor_free_name("cudaFree"));
  CHECK(vendor_free_name("aten::miopen_convolution") ==
        vendor_free_name("aten::cudnn_convolution"));
  CHECK(vendor_free_name("custom") == "custom");
}

TEST_CASE("pieces: they sum to the steps and to the shared-out GPU time") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Analysed a(RandomTrace(seed, 120, 100'000).text());
    std::mt19937 random(seed);
    std::vector<Interval> bounds;
    for (std::int64_t at = -1000; at < 130'000;) {
      const std::int64_t start = at + static_cast<std::int64_t>(random() % 3) * 500;
      at = start + static_cast<std::int64_t>(random() % 20'000);
      bounds.push_back({start, at});
    }
    const StepPieces pieces = build_step_pieces(a.table, a.tree, bounds);
    std::vector<std::int64_t> total(bounds.size(), 0);
    std::vector<std::array<std::int64_t, 3>> by_class(bounds.size());
    for (std::size_t i = 0; i < pieces.ns.size(); ++i) {
      CHECK(pieces.ns[i] > 0);
      CHECK(pieces.part[i] < kStepPartCount);
      total[pieces.step[i]] += pieces.ns[i];
      if (pieces.part[i] < kPartHost) by_class[pieces.step[i]][pieces.part[i]] += pieces.ns[i];
    }
    for (std::size_t step = 0; step < bounds.size(); ++step) {
      const Timeline line = compute_timeline(a.gpu, bounds[step]);
      CHECK(total[step] == bounds[step].length_ns());
      CHECK(by_class[step][kPartCompute] == line.compute_ns);
      CHECK(by_class[step][kPartCommunication] == line.exposed_communication_ns);
      CHECK(by_class[step][kPartMemcpy] == line.exposed_memcpy_ns);
    }
    // In one step over everything each event has the time that GpuCosts gives it.
    const std::vector<Interval> all{{-1'000'000, 10'000'000}};
    const StepPieces whole = build_step_pieces(a.table, a.tree, all);
    std::vector<std::int64_t> exclusive(a.table.size(), 0);
    for (std::size_t i = 0; i < whole.ns.size(); ++i) {
      if (whole.part[i] < kPartHost) exclusive[whole.row[i]] += whole.ns[i];
    }
    CHECK(exclusive == build_gpu_costs(a.table, a.tree).exclusive_ns);
  }
}

TEST_CASE("pieces: without a GPU the innermost row of the main thread has the time") {
  TraceText text;
  text.host("cpu_op", "outer", 10, 50).host("cpu_op", "inner", 20, 10);
  const Analysed a(text);
  const std::vector<Interval> bounds{{0, 100'000}};
  const StepPieces pieces = build_step_pieces(a.table, a.tree, bounds);
  std::vector<std::tuple<std::string, std::int64_t>> found;
  for (std::size_t i = 0; i < pieces.ns.size(); ++i) {
    CHECK(pieces.part[i] == kPartHost);
    found.emplace_back(a.name(pieces.row[i]), pieces.ns[i]);
  }
  CHECK(found ==
        std::vector<std::tuple<std::string, std::int64_t>>{
            {"", 10'000}, {"outer", 10'000}, {"inner", 10'000}, {"outer", 30'000}, {"", 40'000}});
}

TEST_CASE("pieces: no steps, no events") {
  const Analysed empty(TraceText().raw(R"({"ph":"i","name":"mark","pid":1,"tid":1,"ts":1})"));
  CHECK(build_step_pieces(empty.table, empty.tree, {}).ns.empty());
  const std::vector<Interval> bounds{{0, 0}, {5, 9}};
  const StepPieces pieces = build_step_pieces(empty.table, empty.tree, bounds);
  REQUIRE(pieces.ns == std::vector<std::int64_t>{4});
  CHECK(pieces.row[0] == kNoRow);
}

TEST_CASE("trees: equal programs match call by call") {
  Program program;
  program.op("aten::linear").leaf("aten::addmm", "[[2,3]]").end().leaf("aten::relu");
  const RecordedProgram a(program), b(program);
  CHECK(describe(a, b) == Lines{"0 aten::linear aten::linear shape",
                                "1 aten::addmm aten::addmm shape",
                                "0 aten::relu aten::relu shape"});
}

TEST_CASE("trees: calls that launch nothing are no nodes") {
  Program before, after;
  before.op("aten::view").end().leaf("aten::relu");
  after.leaf("aten::relu");
  CHECK(describe(RecordedProgram(before), RecordedProgram(after)) ==
        Lines{"0 aten::relu aten::relu shape"});
}

TEST_CASE("trees: shapes decide which of equal names is which") {
  Program before, after;
  before.leaf("aten::mm", "[[1]]").leaf("aten::mm", "[[2]]").leaf("aten::mm", "[[3]]");
  after.leaf("aten::mm", "[[1]]").leaf("aten::mm", "[[3]]");
  CHECK(describe(RecordedProgram(before), RecordedProgram(after)) ==
        Lines{"0 aten::mm aten::mm shape", "0 aten::mm - unmatched", "0 aten::mm aten::mm shape"});
}

TEST_CASE("trees: a wrapper that came is opened, one that went as well") {
  Program bare, wrapped;
  bare.leaf("aten::addmm").leaf("aten::relu").leaf("aten::sum");
  wrapped.op("my::block").op("my::inner").leaf("aten::addmm").leaf("aten::relu").end().end();
  wrapped.leaf("aten::sum");
  const Lines came{"0 - my::block unmatched", "0 - my::inner unmatched",
                   "0 aten::addmm aten::addmm shape", "0 aten::relu aten::relu shape",
                   "0 aten::sum aten::sum shape"};
  CHECK(describe(RecordedProgram(bare), RecordedProgram(wrapped)) == came);
  Lines went = describe(RecordedProgram(wrapped), RecordedProgram(bare));
  CHECK(went[0] == "0 my::block - unmatched");
  CHECK(went[2] == "0 aten::addmm aten::addmm shape");
}

TEST_CASE("trees: different wrappers on both sides that wrap the same calls are opened") {
  Program before, after;
  before.op("my::norm").leaf("aten::mean", "[[4]]").leaf("aten::rsqrt", "[[4]]").end();
  before.op("my::gate").leaf("aten::mul", "[[4]]").end();
  after.op("my::norm_and_gate").leaf("aten::mean", "[[4]]").leaf("aten::mul", "[[4]]").end();
  CHECK(describe(RecordedProgram(before), RecordedProgram(after)) ==
        Lines{"0 my::norm - unmatched", "0 my::gate - unmatched", "0 - my::norm_and_gate unmatched",
              "0 aten::mean aten::mean shape", "0 aten::rsqrt - unmatched",
              "0 aten::mul aten::mul shape"});
}

TEST_CASE("trees: wrappers whose calls agree in name alone stay as they are") {
  Program before, after;
  before.op("my::norm").leaf("aten::copy_", "[[4]]").end().leaf("my::gate");
  after.op("my::loss").leaf("aten::copy_", "[[9]]").end().leaf("a").leaf("b");
  CHECK(describe(RecordedProgram(before), RecordedProgram(after)) ==
        Lines{"0 my::norm - unmatched", "1 aten::copy_ - unmatched", "0 my::gate - unmatched",
              "0 - my::loss unmatched", "1 - aten::copy_ unmatched", "0 - a unmatched",
              "0 - b unmatched"});
}

TEST_CASE("trees: what stands alone between equal neighbours was renamed") {
  Program before, after;
  before.leaf("aten::mm").op("aten::gelu").leaf("aten::mul").end().leaf("aten::sum");
  after.leaf("aten::mm").op("my::gelu").leaf("aten::mul").end().leaf("aten::sum");
  const Lines lines = describe(RecordedProgram(before), RecordedProgram(after));
  CHECK(lines[1] == "0 aten::gelu my::gelu position");
  CHECK(lines[2] == "1 aten::mul aten::mul shape");
}

TEST_CASE("trees: vendors' names for one operator match") {
  Program cuda, hip;
  cuda.leaf("aten::cudnn_convolution");
  hip.leaf("aten::miopen_convolution");
  CHECK(describe(RecordedProgram(cuda), RecordedProgram(hip)) ==
        Lines{"0 aten::cudnn_convolution aten::miopen_convolution shape"});
}

TEST_CASE("trees: module frames that only one side recorded do not hide the operators") {
  Program with, without;
  with.op("nn.Module: Net_0").leaf("aten::mm").leaf("aten::relu").end();
  without.leaf("aten::mm").leaf("aten::relu");
  CHECK(describe(RecordedProgram(with), RecordedProgram(without)) ==
        Lines{"0 aten::mm aten::mm shape", "0 aten::relu aten::relu shape"});
}

TEST_CASE("trees: calls without partner join the context of their name") {
  Program before, after;
  for (int i = 0; i < 3; ++i) before.op("aten::linear").leaf("aten::mm").end();
  after.op("aten::linear").leaf("aten::mm").end();
  const RecordedProgram a(before), b(after);
  const DiffPair pair{a.side(), b.side()};
  const TreeDiff diff = build_tree_diff({&pair, 1});
  CHECK(diff.context_parent.size() == 2);
  std::set<std::uint32_t> variants(diff.variant.begin(), diff.variant.end());
  CHECK(variants.size() == 2);
  CHECK(diff.names[diff.context_before[0]] == "aten::linear");
}

TEST_CASE("trees: every row of random traces has the node around it, every node its place") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const RecordedProgram a(RandomTrace(seed, 150, 100'000).text());
    const RecordedProgram b(RandomTrace(seed + (seed % 3), 150, 100'000).text());
    const DiffPair pair{a.side(), b.side()};
    const TreeDiff diff = build_tree_diff({&pair, 1});
    std::set<Row> before, after;
    for (std::size_t i = 0; i < diff.before_row.size(); ++i) {
      CHECK((diff.before_row[i] != kNoRow || diff.after_row[i] != kNoRow));
      if (diff.before_row[i] != kNoRow) CHECK(before.insert(diff.before_row[i]).second);
      if (diff.after_row[i] != kNoRow) CHECK(after.insert(diff.after_row[i]).second);
      const std::uint32_t parent = diff.parent[i];
      if (parent != kNoNode) {
        CHECK(parent < i);
        CHECK(diff.depth[i] == diff.depth[parent] + 1);
      }
      REQUIRE(diff.variant[i] < diff.variant_context.size());
      const std::uint32_t context = diff.variant_context[diff.variant[i]];
      const std::uint32_t above = diff.context_parent[context];
      CHECK((parent == kNoNode) == (above == kNoNode));
      if (seed % 3 == 0) CHECK(diff.matched_by[i] == MatchedBy::kNameAndShape);
    }
    for (Row row = 0; row < a.table.size(); ++row) {
      const std::uint32_t node = diff.before_node[0][row];
      if (before.contains(row)) CHECK(diff.before_row[node] == row);
      if (node == kNoNode || a.tree.gpu_class[row] != GpuClass::kNone) continue;
      CHECK(is_inside(a.tree, row, diff.before_row[node]));
    }
  }
}

TEST_CASE("trees: depth and length of hostile traces are no problem") {
  Program deep;
  for (int i = 0; i < 3000; ++i) deep.op("op" + std::string(static_cast<std::size_t>(i % 7), 'x'));
  deep.kernel();
  for (int i = 0; i < 3000; ++i) deep.end();
  Program flat;
  for (int i = 0; i < 3000; ++i) flat.leaf(i % 3 == 0 ? "opx" : "opxx");
  CHECK(describe(RecordedProgram(deep), RecordedProgram(flat)).size() >= 3000);
}
