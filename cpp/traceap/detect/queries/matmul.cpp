#include "traceap/detect/queries/matmul.hpp"

#include <algorithm>
#include <array>

namespace traceap {
namespace {

bool has_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return contains(text, part); });
}

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

bool is_memory_bound(std::string_view name) { return has_any(name, {"gemv", "dot_kernel"}); }

bool holds_half(std::string_view name) {
  return has_any(name, {"bf16", "fp16", "f16f16", "__half", "nv_bfloat16", "bfloat16", "half_t",
                        "hgemm", "hcudnn"});
}

/// Words that only kernels on tensor cores carry.
bool names_matrix_unit(std::string_view name) {
  return has_any(
      name, {"tf32",  "tensorop",  "h884",          "s884",           "h1688",      "s1688",
             "i8816", "16816",     "161616",        "hmma",           "imma",       "wgmma",
             "gmma",  "nvjet",     "xmma_gemm_f16", "xmma_gemm_bf16", "tensor16x8", "tensor32x8",
             "Sm90",  "sm90_xmma", "xdlops",        "_xdl_"});
}

/// fp32 on the ordinary units: cuBLAS sgemm, cuDNN scudnn and its older engines, CUTLASS simt.
bool names_plain_fp32(std::string_view name) {
  return has_any(name, {"sgemm", "scudnn", "gemmSN_", "simt_s", "fft2d_", "explicit_convolve",
                        "_ffma_", "xmma_gemm_f32f32"}) ||
         (has_any(name, {"wgrad_alg", "dgrad_engine", "dgrad2d_", "wgrad2d_"}) &&
          contains(name, "<float"));
}

struct Architecture {
  int capability;  ///< compute capability times ten
  double half_ratio, tf32_ratio;
};
// Dense rates from NVIDIA's architecture white papers, fp32 accumulation: V100 125/15.7 TFLOPS;
// Turing (TU102) 53.8/13.4; A100 312 and 156 over 19.5; GA10x and AD10x twice and once their fp32
// rate on GeForce, twice that on the professional cards; H100 SXM 989 and 495 over 67; B200 2250
// and 1125 over 75; RTX Blackwell (12.x) as Ada.
constexpr std::array kArchitectures{
    Architecture{70, 8.0, 0},      Architecture{72, 8.0, 0},    Architecture{75, 4.0, 0},
    Architecture{80, 16.0, 8.0},   Architecture{86, 2.0, 1.0},  Architecture{87, 4.0, 2.0},
    Architecture{89, 2.0, 1.0},    Architecture{90, 14.8, 7.4}, Architecture{100, 30.0, 15.0},
    Architecture{103, 30.0, 15.0}, Architecture{120, 2.0, 1.0}, Architecture{121, 2.0, 1.0}};

MatrixUnits units_of_capability(int capability) {
  MatrixUnits units;
  units.known = true;
  if (capability < kArchitectures.front().capability) return units;
  const Architecture* best = kArchitectures.data();
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.capability <= capability) best = &architecture;
  }
  units.half_ratio = best->half_ratio;
  units.tf32_ratio = best->tf32_ratio;
  return units;
}

bool is_amd_name(std::string_view name) {
  return contains_any_case(name, "amd") || contains_any_case(name, "radeon") ||
         contains_any_case(name, "instinct") || contains_any_case(name, "gfx");
}

/// AMD's CDNA white papers, bf16 over fp32 matrix rate: MI100 92/46, MI200 383/96, MI300X 1307/163.
MatrixUnits units_of_amd(std::string_view name) {
  MatrixUnits units;
  units.known = true;
  if (contains(name, "MI100")) units.half_ratio = 2.0;
  if (contains(name, "MI2")) units.half_ratio = 4.0;
  if (contains(name, "MI3")) units.half_ratio = 8.0;
  if (units.half_ratio == 0) units.known = false;  // other Radeon cards: rates differ by model
  return units;
}

bool is_amd_trace(const Signals& signals) {
  return std::any_of(signals.api_rows.begin(), signals.api_rows.end(),
                     [&](Row r) { return signals.table.name_of(r).substr(0, 3) == "hip"; });
}

/// Kernels carry the architecture that they were built for; a newer GPU may run them too.
MatrixUnits units_by_kernel_names(const Signals& signals) {
  int capability = 0;
  std::vector<std::uint8_t> seen(signals.table.strings.size(), 0);
  for (Row r : signals.tree.gpu_rows) {
    const StringId id = signals.table.name[r];
    if (seen[id] != 0) continue;
    seen[id] = 1;
    const std::string_view name = signals.table.strings[id];
    if (has_any(name, {"volta_"})) capability = std::max(capability, 70);
    if (has_any(name, {"turing_"})) capability = std::max(capability, 75);
    if (has_any(name, {"ampere_", "sm80_", "Sm80"})) capability = std::max(capability, 80);
    if (has_any(name, {"sm86_"})) capability = std::max(capability, 86);
    if (has_any(name, {"sm90_", "Sm90", "nvjet"})) capability = std::max(capability, 90);
  }
  if (capability == 0) return {};
  MatrixUnits units = units_of_capability(capability);
  // The family is known and not the model: take its least favourable member.
  units.half_ratio = std::min(units.half_ratio, 2.0);
  units.tf32_ratio = std::min(units.tf32_ratio, 1.0);
  return units;
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

MatrixUnits find_matrix_units(const Signals& signals) {
  const bool amd = is_amd_trace(signals);
  MatrixUnits best;
  for (const DeviceProperties& device : signals.table.devices) {
    MatrixUnits units;
    if (amd || is_amd_name(device.name)) {
      units = units_of_amd(device.name);
    } else if (device.compute_major && *device.compute_major < 100) {
      const std::int64_t minor = device.compute_minor.value_or(0);
      units = units_of_capability(
          static_cast<int>(*device.compute_major * 10 + std::clamp<std::int64_t>(minor, 0, 9)));
    }
    units.device = device.name;
    if (units.known && (!best.known || units.half_ratio > best.half_ratio)) best = units;
  }
  if (best.known || amd) return best;
  return units_by_kernel_names(signals);
}

}  // namespace traceap
