#include "traceap/detect/queries/pointwise.hpp"

#include "traceap/base/text.hpp"

namespace traceap {

bool is_pointwise_kernel(std::string_view name) {
  return contains(name, "elementwise_kernel") && !contains(name, "multi_tensor_apply");
}

bool is_pointwise_copy(std::string_view name) {
  return is_pointwise_kernel(name) && contains(name, "copy_kernel");
}

bool is_reduction_kernel(std::string_view name) {
  return contains(name, "at::native::reduce_kernel");
}

bool is_normalisation_kernel(std::string_view name) {
  return contains_any(name, {"layer_norm", "LayerNorm", "RowwiseMoments", "batch_norm", "GroupNorm",
                             "group_norm", "cudnn::bn_", "MIOpenBatchNorm"});
}

}  // namespace traceap
