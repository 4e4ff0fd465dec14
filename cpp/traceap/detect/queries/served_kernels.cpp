#include "traceap/detect/queries/served_kernels.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/text.hpp"
#include "traceap/detect/queries/matmul.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/pointwise.hpp"

namespace traceap {
namespace {

/// A kernel that waited for nothing but the one before it starts within a few microseconds; ten
/// times that leaves room for a launch from the host.
constexpr std::int64_t kReachNs = 50'000;

/// The name without template arguments and parameters, which name what is not done as well.
std::string_view head_of(std::string_view lower) {
  return lower.substr(0, lower.find_first_of("<("));
}

bool is_of_four_bits(std::string_view lower) {
  return contains_any(lower, {"awq", "gptq", "int4", "uint4", "nf4", "4bit", "q4_", "gguf", "bnb"});
}

bool names_quantized_type(std::string_view lower) {
  return contains_any(lower, {"fp8", "e4m3", "e5m2", "float8", "int8", "fp4", "e2m1", "scaled_mm",
                              "f8f8", "mxf4", "nvf4"});
}

bool names_product(std::string_view name, std::string_view lower) {
  return contains_any(lower, {"gemm", "nvjet", "cijk_", "matmul", "gemv", "xmma", "scaled_mm",
                              "cublas", "cutlass", "_mm_", "fused_moe_kernel", "marlin"}) ||
         classify_matmul(name) != MatmulKind::kNone;
}

bool names_attention(std::string_view lower) {
  return contains_any(lower, {"flash_fwd", "flash::", "flashattn", "fmha", "attention", "attn_",
                              "_attn", "batchdecode", "batchprefill", "mla_decode", "_mla_"});
}

bool names_norm(std::string_view name, std::string_view head) {
  // Inductor names a kernel after its operators: a mean of squares and its root is a norm.
  const bool inductor = head.starts_with("triton_") && contains(head, "rsqrt");
  return contains(head, "norm") || inductor || is_normalisation_kernel(name);
}

bool names_quantize(std::string_view head) {
  return contains_any(head,
                      {"quant", "per_token_cast", "to_fp8", "cast_fp8", "fp8_cast", "fp4_convert"});
}

bool names_cache_copy(std::string_view head) {
  return contains_any(head, {"copy_blocks", "swap_blocks", "gather_cache", "dequant_cache",
                             "move_kv_cache", "copy_kv", "kv_copy", "kv_cache_copy",
                             "copy_all_layer_kv", "transfer_kv", "gather_kv"});
}

bool names_add(std::string_view lower, std::string_view head) {
  if (head.starts_with("triton_")) {
    return head.starts_with("triton_poi_fused_add_") || head == "triton_poi_fused_add";
  }
  if (contains_any(lower, {"addc", "address"})) return false;
  return contains_any(lower, {"functor_add", "functoronself_add", "addfunctor"}) ||
         contains_any(head, {"add_kernel", "residual_add", "add_residual"});
}

KernelPart tell_part(std::string_view name) {
  const std::string lower = to_lower(name);
  const std::string_view head = head_of(
      lower.substr(0, 5) == "void " ? std::string_view(lower).substr(5) : std::string_view(lower));
  if (names_cache_copy(head)) return KernelPart::kCacheCopy;
  if (contains_any(head, {"dequant", "fp8_to_bf16", "fp8_to_fp16", "fp8_to_half"})) {
    return is_of_four_bits(lower) ? KernelPart::kOther : KernelPart::kDequantize;
  }
  const bool quantizes = names_quantize(head);
  if (names_norm(name, head)) {
    return quantizes               ? KernelPart::kNormThenQuantize
           : contains(head, "add") ? KernelPart::kNormWithAdd
                                   : KernelPart::kNorm;
  }
  if (names_attention(head)) return KernelPart::kAttention;
  if (contains_any(head, {"gemm", "matmul", "scaled_mm"})) {
    return names_quantized_type(lower) ? KernelPart::kQuantizedProduct : KernelPart::kProduct;
  }
  if (contains_any(head, {"silu", "gelu", "swiglu", "act_and_mul", "relu"})) {
    return quantizes ? KernelPart::kActivationThenQuantize : KernelPart::kActivation;
  }
  if (quantizes) return KernelPart::kQuantize;
  if (contains_any(lower, {"catarraybatchedcopy", "direct_copy_kernel"})) return KernelPart::kCopy;
  if (is_pointwise_kernel(name) || head.starts_with("triton_")) {
    if (contains_any(lower, {"silu_kernel", "gelu"})) return KernelPart::kActivation;
    return names_add(lower, head) ? KernelPart::kAdd : KernelPart::kOther;
  }
  if (names_product(name, lower)) {
    return names_quantized_type(lower) ? KernelPart::kQuantizedProduct : KernelPart::kProduct;
  }
  if (names_add(lower, head)) return KernelPart::kAdd;
  return KernelPart::kOther;
}

}  // namespace

KernelPart part_of_kernel(std::string_view name) {
  constexpr std::size_t kMaxName = 2048;  // generated names may be kilobytes long
  return tell_part(name.substr(0, kMaxName));
}

std::vector<std::vector<ServedKernel>> served_kernels(const Signals& signals) {
  const EventTable& table = signals.table;
  constexpr std::uint8_t kUnknown = 0xff;
  std::vector<std::uint8_t> part_of_name(table.strings.size(), kUnknown);
  const auto part_of = [&](Row row) {
    if (table.kind[row] == EventKind::kGpuMemcpy) {
      const bool inside = signals.tree.copy_direction[row] == CopyDirection::kDeviceToDevice;
      return inside ? KernelPart::kCopy : KernelPart::kOther;
    }
    std::uint8_t& part = part_of_name[table.name[row]];
    if (part == kUnknown) part = static_cast<std::uint8_t>(part_of_kernel(table.name_of(row)));
    return static_cast<KernelPart>(part);
  };
  std::vector<std::vector<ServedKernel>> streams;
  for (const Stream& stream : signals.tree.streams) {
    streams.emplace_back();
    for (const Row row : stream.rows) {
      poll_interrupt();
      if (signals.tree.gpu_class[row] == GpuClass::kCommunication) continue;
      streams.back().push_back({row, part_of(row)});
    }
  }
  return streams;
}

bool follows(const Signals& signals, Row before, Row after) {
  return signals.table.ts_ns[after] - signals.table.end_ns(before) <= kReachNs;
}

std::optional<Finding> judge_unserved(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.tree.workload.role == Role::kTraining) return absent();
  return std::nullopt;
}

Finding finish_served(const Signals& signals, Draft draft, std::string places, std::size_t count) {
  draft.count(std::move(places), count);
  draft.text("kernel", most_frequent_names(signals.table, draft.evidence, 1));
  return finish_finding(signals, std::move(draft));
}

}  // namespace traceap
