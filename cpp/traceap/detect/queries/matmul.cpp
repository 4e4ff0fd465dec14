#include "traceap/detect/queries/matmul.hpp"

#include <algorithm>

#include "traceap/detect/queries/names.hpp"

namespace traceap {
namespace {

/// Tensile names its kernels by index letters, then the number types: Cijk_Ailk_Bljk_SB_ is fp32,
/// HB or HHS is fp16, BB or BBS is bf16; newer ones put underscores between (_S_B_, _B_BS_BH_), and
/// _S_MX_ is xf32.
MatmulKind classify_tensile(std::string_view name) {
  std::size_t at = 0;
  for (int i = 0; i < 3 && at != std::string_view::npos; ++i) at = name.find('_', at) + 1;
  const std::string_view types = name.substr(std::min(at, name.size()), 8);
  if (types.substr(0, 4) == "S_MX") return MatmulKind::kMatrixUnit;
  if (types.substr(0, 2) == "SB" || types.substr(0, 3) == "S_B") return MatmulKind::kPlainFp32;
  if (!types.empty() && (types[0] == 'H' || types[0] == 'B' || types[0] == 'F')) {
    return MatmulKind::kMatrixUnit;
  }
  return MatmulKind::kNone;
}

bool is_memory_bound(std::string_view name) { return contains_any(name, {"gemv", "dot_kernel"}); }

bool holds_half(std::string_view name) {
  return contains_any(name, {"bf16", "fp16", "f16f16", "__half", "nv_bfloat16", "bfloat16",
                             "half_t", "hgemm", "hcudnn"});
}

/// Words that only kernels on tensor cores carry.
bool names_matrix_unit(std::string_view name) {
  return contains_any(
      name, {"tf32",  "tensorop",  "h884",          "s884",           "h1688",      "s1688",
             "i8816", "16816",     "161616",        "hmma",           "imma",       "wgmma",
             "gmma",  "nvjet",     "xmma_gemm_f16", "xmma_gemm_bf16", "tensor16x8", "tensor32x8",
             "Sm90",  "sm90_xmma", "xdlops",        "_xdl_"});
}

/// fp32 on the ordinary units: cuBLAS sgemm, cuDNN scudnn and its older engines, CUTLASS simt.
bool names_plain_fp32(std::string_view name) {
  return contains_any(name, {"sgemm", "scudnn", "gemmSN_", "simt_s", "fft2d_", "explicit_convolve",
                             "_ffma_", "xmma_gemm_f32f32"}) ||
         (contains_any(name, {"wgrad_alg", "dgrad_engine", "dgrad2d_", "wgrad2d_"}) &&
          contains(name, "<float"));
}

/// What any device of a generation with matrix units reaches at least, for a trace that says no
/// more than that its kernels were built for one (GeForce cards of Ampere and Ada).
constexpr double kLeastHalfRatio = 2.0;

/// Kernels carry the architecture that they were built for; a newer GPU may run them too.
bool names_architecture_with_units(std::string_view name) {
  return contains_any(
      name, {"volta_", "turing_", "ampere_", "sm80_", "Sm80", "sm86_", "sm90_", "Sm90", "nvjet"});
}

}  // namespace

MatmulKind classify_matmul(std::string_view name) {
  if (name.substr(0, 5) == "Cijk_") return classify_tensile(name);
  if (name.substr(0, 6) == "igemm_" || contains(name, "Sp3AsmConv")) {  // MIOpen
    return contains(name, "fp32") ? MatmulKind::kPlainFp32 : MatmulKind::kMatrixUnit;
  }
  if (is_memory_bound(name)) return MatmulKind::kNone;
  if (names_matrix_unit(name)) return MatmulKind::kMatrixUnit;
  if (!names_plain_fp32(name)) {
    return contains(name, "hgemm") ? MatmulKind::kPlainHalf : MatmulKind::kNone;
  }
  return holds_half(name) ? MatmulKind::kPlainHalf : MatmulKind::kPlainFp32;
}

std::optional<MatrixUnits> find_matrix_units(const Signals& signals) {
  if (signals.options.matrix_units) return signals.options.matrix_units;
  const LazyNames tells(signals.table, names_architecture_with_units);
  const auto& rows = signals.tree.gpu_rows;
  if (std::none_of(rows.begin(), rows.end(), [&](Row r) { return tells(r); })) return std::nullopt;
  return MatrixUnits{.half_ratio = kLeastHalfRatio};
}

}  // namespace traceap
