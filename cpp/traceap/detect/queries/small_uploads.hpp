#pragma once
// Many small host-to-device copies in every step: constants built from Python numbers.

#include <cstdint>
#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

/// The size below which INTERFACE calls copies small constants. CUDA also returns from a pageable
/// copy of up to 64 KiB before it is done.
inline constexpr std::int64_t kSmallUploadBytes = 64 << 10;

struct SmallUploads {
  std::vector<const Copy*> copies;  ///< by start
  bool sizes_missing = false;       ///< there would be some if copies without a size were small
};
/// Uploads of less than kSmallUploadBytes from memory that is not pinned, if there are so many of
/// them in step after step, or in so many places of each pass, that no batch explains them; else
/// none. Where fewer than two steps tell, they have to lie between kernels: a model that moves to
/// the device is one burst.
SmallUploads find_small_uploads(const Signals& signals);

}  // namespace traceap
