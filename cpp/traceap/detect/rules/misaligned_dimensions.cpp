// Half-precision matrix products whose rows do not start at multiples of 16 bytes: the matrix units
// then load them piecemeal, or are not used at all.

#include <algorithm>
#include <array>
#include <optional>

#include "traceap/detect/queries/matmul.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/shapes.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// 16 bytes of a 2-byte type: NVIDIA's requirement for efficient tensor cores (Matrix
/// Multiplication Background guide, section 2.2).
constexpr std::int64_t kAlignment = 8;
/// Below this the product is a product with (almost) a vector: bound by memory, padding is no help.
constexpr std::int64_t kMinSize = 16;
/// What padding gives is measured nowhere in a trace. The guide's figures for cuBLAS 11 show
/// between nothing and a factor of two.
constexpr SavingShares kSaving{.basis = SavingBasis::kGpuWork, .best = 0.25, .high = 0.5};

enum class Operation : std::uint8_t { kNone, kProduct, kProductWithBias, kConvolution };

Operation operation_of(std::string_view name) {
  if (name == "aten::mm" || name == "aten::bmm") return Operation::kProduct;
  if (name == "aten::addmm" || name == "aten::baddbmm" || name == "aten::_addmm_activation") {
    return Operation::kProductWithBias;
  }
  if (name == "aten::cudnn_convolution" || name == "aten::miopen_convolution") {
    return Operation::kConvolution;
  }
  return Operation::kNone;
}

bool is_aligned(std::int64_t size) { return size % kAlignment == 0; }

/// Distance between rows (or columns, if transposed) of a matrix: the larger of its last two
/// strides.
std::optional<std::int64_t> row_distance(const TensorInfo& matrix) {
  const std::size_t n = matrix.dims.size();
  if (matrix.strides.size() != n) return std::nullopt;
  return std::max(matrix.strides[n - 1], matrix.strides[n - 2]);
}

/// Without strides a transposed operand can't be seen. In the backward the first operand mostly is
/// one (the gradient of a weight), and its row length is the batch's: then only the result tells.
bool is_misaligned_product(const TensorInfo& a, const TensorInfo& b, bool backward) {
  if (a.dims.size() < 2 || b.dims.size() < 2) return false;
  if (!is_half_type(a.type) || !is_half_type(b.type)) return false;
  const std::int64_t m = a.dims[a.dims.size() - 2], k = a.dims.back(), n = b.dims.back();
  if (std::min({m, k, n}) < kMinSize) return false;
  if (!is_aligned(n)) return true;  // PyTorch allocates the result contiguous
  const auto a_distance = row_distance(a), b_distance = row_distance(b);
  if (a_distance && b_distance) return !is_aligned(*a_distance) || !is_aligned(*b_distance);
  return !backward && !is_aligned(k);
}

bool is_misaligned_convolution(const TensorInfo& input, const TensorInfo& weight) {
  if (input.dims.size() < 3 || weight.dims.size() != input.dims.size()) return false;
  if (!is_half_type(input.type) || !is_half_type(weight.type)) return false;
  const std::int64_t in = input.dims[1], out = weight.dims[0];
  if (weight.dims[1] != in) return false;  // grouped: no tensor cores either way
  return in >= kMinSize && out >= kMinSize && (!is_aligned(in) || !is_aligned(out));
}

std::string dims_text(const std::vector<std::int64_t>& dims) {
  std::string text;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    text += (i > 0 ? "x" : "") + std::to_string(dims[i]);
  }
  return text;
}

struct Product {
  Row op;
  bool told = false;  ///< types are recorded
  bool misaligned = false;
  std::string shape;
};

Product judge(const InputReader& reader, Row op, Operation operation, bool backward) {
  Product product{.op = op, .told = !reader.types(op).empty()};
  const std::vector<TensorInfo> inputs = reader.inputs(op);
  const std::size_t first = operation == Operation::kProductWithBias ? 1 : 0;
  if (inputs.size() < first + 2) return product;
  const TensorInfo &a = inputs[first], &b = inputs[first + 1];
  product.misaligned = operation == Operation::kConvolution ? is_misaligned_convolution(a, b)
                                                            : is_misaligned_product(a, b, backward);
  if (product.misaligned) product.shape = dims_text(a.dims) + " by " + dims_text(b.dims);
  return product;
}

/// Ordinary units have reasons of their own in convolutions (few channels, groups), and in the
/// kernels that cuBLAS has for a dimension of a few elements ("SN").
bool has_another_reason(std::string_view name) {
  return contains_any(name, {"gemmSN_", "convolve", "scudnn", "hcudnn", "wgrad", "dgrad", "fft2d"});
}

/// Kernels that say it themselves, for traces without shapes: CUTLASS writes the alignment of its
/// operands in elements, and products of half-precision data on ordinary units have no other reason
/// on a device with matrix units.
bool kernel_shows_misalignment(std::string_view name) {
  if (classify_matmul(name) == MatmulKind::kPlainHalf) return !has_another_reason(name);
  const bool half = contains(name, "bf16") || contains(name, "f16_s") || contains(name, "h16");
  if (!half || !contains(name, "cutlass")) return false;
  constexpr std::array<std::string_view, 3> kNarrow{"align1", "align2", "align4"};
  return std::any_of(kNarrow.begin(), kNarrow.end(), [&](std::string_view word) {
    const std::size_t at = name.find(word);
    if (at == std::string_view::npos) return false;
    const std::size_t end = at + word.size();
    return end == name.size() || name[end] < '0' || name[end] > '9';
  });
}

struct Search {
  Draft draft{kSaving};
  std::size_t products = 0;  ///< misaligned operator calls
  bool shapes = false;
  std::vector<Interval> untold;  ///< kernels of products whose types are not recorded
  std::string example;
};

/// Products by their recorded shapes; kernels of one call follow each other by start mostly, so the
/// last verdict is kept.
void search_by_shape(const Signals& signals, Search& search) {
  const EventTable& table = signals.table;
  const InputReader reader(table);
  std::vector<Operation> operations(table.strings.size(), Operation::kNone);
  std::vector<std::uint8_t> judged(table.strings.size(), 0);
  Product last{kNoRow};
  for (Row r : signals.tree.gpu_rows) {
    const Row op = signals.tree.op[r];
    if (table.kind[r] != EventKind::kKernel || op == kNoRow) continue;
    const StringId name = table.name[op];
    if (judged[name] == 0) {
      judged[name] = 1;
      operations[name] = operation_of(table.strings[name]);
    }
    if (operations[name] == Operation::kNone) continue;
    const bool new_call = last.op != op;
    if (new_call) {
      last = judge(reader, op, operations[name], signals.tree.phase[op] == Phase::kBackward);
      search.shapes = search.shapes || last.told;
    }
    if (!last.told) search.untold.push_back(interval_of(table, r));
    if (!last.misaligned) continue;
    search.draft.cost.push_back(interval_of(table, r));
    search.draft.evidence.push_back(op);
    if (new_call) ++search.products;
    if (search.example.empty()) search.example = last.shape;
  }
}

void search_by_kernel_name(const Signals& signals, Search& search) {
  const LazyNames shows(signals.table, kernel_shows_misalignment);
  for (Row r : signals.tree.gpu_rows) {
    if (signals.table.kind[r] != EventKind::kKernel || !shows(r)) continue;
    search.draft.cost.push_back(interval_of(signals.table, r));
    search.draft.evidence.push_back(r);
    ++search.products;
  }
}

/// Time of the products that could be misaligned without a word on it in their kernels' names.
std::int64_t untold_ns(const Signals& signals, const Search& search) {
  const LazyNames matmul(signals.table, [](std::string_view name) {
    return classify_matmul(name) == MatmulKind::kMatrixUnit;
  });
  std::vector<Interval> products = search.untold;
  for (Row r : signals.tree.gpu_rows) {
    if (matmul(r)) products.push_back(interval_of(signals.table, r));
  }
  return total_length_ns(make_union(std::move(products)));
}

Finding finish(const Signals& signals, Search search) {
  search.draft.count("products", search.products);
  if (!search.example.empty()) search.draft.text("example", search.example);
  return finish_finding(signals, std::move(search.draft));
}

/// Names show some of them; what they do not show is open.
Finding judge_by_kernel_name(const Signals& signals, Search search) {
  search_by_kernel_name(signals, search);
  const bool open = is_material(signals, untold_ns(signals, search));
  search.draft.missing_signals.emplace_back("input shapes: judged by kernel names");
  search.draft.confidence = 0.6;  // a library may choose such a kernel for other reasons
  Finding finding = finish(signals, std::move(search));
  if (finding.verdict == Verdict::kPresent) return finding;
  return open ? abstain({"input shapes and types (record_shapes=True)"}) : absent();
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  const auto& units = signals.options.matrix_units;
  if (units && units->half_ratio <= 1.0) return absent();  // no matrix units to feed
  Search search;
  search_by_shape(signals, search);
  if (!search.shapes) return judge_by_kernel_name(signals, std::move(search));
  return finish(signals, std::move(search));
}

}  // namespace

namespace rules {
extern constexpr Rule misaligned_dimensions{
    .type = "misaligned_dimensions", .saving = kSaving, .detect = detect};
}

}  // namespace traceap
