#pragma once
// Layers of the networks as functions of tensors. The only header that shows LibTorch; private to
// networks/.

#include <ATen/ATen.h>

#include <map>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "traceap/cuda/kernels.hpp"
#include "traceap/model/networks/weights.hpp"

namespace traceap::networks {

using at::Tensor;

/// Weights by name, each asked for with the shape that the network needs.
class Weights {
 public:
  /// Throws SchemaError for two arrays of one name or values that are not finite, OptionError for a
  /// device that this build or this machine does not have.
  Weights(std::span<const WeightArray> arrays, Precision encoder, const std::string& device);

  /// Throws SchemaError where the array is missing or has another shape.
  Tensor get(const std::string& name, at::IntArrayRef shape) const;
  /// The same in the encoder's precision.
  Tensor get_encoder(const std::string& name, at::IntArrayRef shape) const;

 private:
  std::map<std::string, Tensor> arrays_;
  at::ScalarType encoder_type_;
};

struct Linear {
  Tensor weight, bias;
  Linear() = default;
  Linear(const Weights& weights, const std::string& name, std::int64_t in, std::int64_t out,
         bool encoder = false);
  Tensor operator()(const Tensor& x) const { return at::linear(x, weight, bias); }
};

struct LayerNorm {
  Tensor weight, bias;
  LayerNorm() = default;
  LayerNorm(const Weights& weights, const std::string& name, std::int64_t width,
            bool encoder = false);
  Tensor operator()(const Tensor& x) const {
    return at::layer_norm(x, weight.sizes(), weight, bias);
  }
};

/// Along the windows of one trace: [W, in] to [W, out], zeros beyond the ends.
struct Convolution {
  Tensor weight, bias;
  std::int64_t dilation = 1;
  Convolution() = default;
  Convolution(const Weights& weights, const std::string& name, std::int64_t in, std::int64_t out,
              std::int64_t size, std::int64_t dilated);
  Tensor operator()(const Tensor& x) const;
};

/// `count` sequences of `length` rows each, one behind the other.
struct SequenceGroup {
  std::int64_t count, length;
};

/// Pre-norm transformer layers over sequences of any lengths, packed without padding.
class Encoder {
 public:
  Encoder() = default;
  Encoder(const Weights& weights, const std::string& name, std::int64_t layers, std::int64_t width,
          std::int64_t heads, std::int64_t feed_forward);
  /// `x` [rows, width] holds `groups`. Returns the first row of each sequence, normalised:
  /// [sequences, width], float32. Of the last layer nothing else is computed.
  Tensor first_rows(Tensor x, std::span<const SequenceGroup> groups) const;

 private:
  struct Layer {
    LayerNorm norm1, norm2;
    Linear qkv, out, fc1, fc2;
  };
  Tensor attend(const Tensor& queries, const Tensor& keys_values,
                std::span<const SequenceGroup> groups, bool first_only) const;
  void feed_forward(const Layer& layer, Tensor& x) const;

  std::vector<Layer> layers_;
  LayerNorm norm_;
  std::int64_t width_ = 0, heads_ = 0;
};

/// [n, heads * size] queries against [m, heads * size] keys and values, all against all.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t heads);
/// The mean of each sequence: [sequences, width].
Tensor means(const Tensor& x, std::span<const SequenceGroup> groups);
/// The first row of each sequence: [sequences, width].
Tensor first_rows(const Tensor& x, std::span<const SequenceGroup> groups);
/// [n, width]: the row `by` places before each, zeros before the first; behind it if negative.
Tensor shifted(const Tensor& x, std::int64_t by);
/// 10000^(-2k / width): [width / 2], with the type and device of `like`.
Tensor frequencies(const Tensor& like, std::int64_t width);
/// sin and cos of each value at the frequencies of `width`: [n, width].
Tensor sinusoids(const Tensor& values, std::int64_t width);
/// A borrowed array as a tensor. Valid as long as its memory is.
Tensor borrow(std::span<const float> values, at::IntArrayRef shape);
Tensor borrow(std::span<const std::int64_t> values);
/// Vectors of one type on a device, brought there by one copy.
std::vector<Tensor> upload(const std::vector<Tensor>& vectors, at::Device device);

/// The memory of a contiguous tensor, on whichever device it lies.
template <typename T>
std::span<T> memory_of(const Tensor& x) {
  TORCH_INTERNAL_ASSERT(x.is_contiguous());
  return {x.data_ptr<std::remove_const_t<T>>(), static_cast<std::size_t>(x.numel())};
}
/// LibTorch's current stream on the tensor's device; nullptr on the CPU.
cuda::Stream stream_of(const Tensor& x);

/// The result of a network's work, done without gradients. A GPU that runs out of memory throws
/// std::bad_alloc, as the host does.
template <typename Work>
auto infer(const Work& work) {
  const c10::InferenceMode no_gradients;
  try {
    return work();
  } catch (const c10::OutOfMemoryError&) {
    throw std::bad_alloc();
  }
}

}  // namespace traceap::networks
