#include "traceap/model/networks/layers.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "traceap/base/error.hpp"

namespace traceap::networks {
namespace {

/// The part of LibTorch that has CUDA. The networks are linked without it, so that a build serves
/// any build of torch; it registers its operators when it is loaded.
struct TorchCuda {
  void* library = nullptr;
  std::string error;  ///< why there is none
  /// aoti_torch_get_current_cuda_stream of torch/csrc/inductor/aoti_torch/c/shim.h: a C function,
  /// which torch has had for long; c10::Stream::native_handle is not in torch 2.11.
  std::int32_t (*current_stream)(std::int32_t device_index, void** stream) = nullptr;

  TorchCuda() : library(dlopen("libtorch_cuda.so", RTLD_NOW)) {
    void* found = library;
    if (found != nullptr) found = dlsym(library, "aoti_torch_get_current_cuda_stream");
    if (found == nullptr) error = dlerror();
    current_stream = reinterpret_cast<decltype(current_stream)>(found);
  }
};
const TorchCuda& torch_cuda() {
  static const TorchCuda loaded;
  return loaded;
}

void check_device(const std::string& device) {
  // Also for the CPU: LibTorch asks what CUDA offers at its first convolution, and once only.
  if constexpr (cuda::kBuilt) torch_cuda();
  if (device == "cpu") return;
  if (device != "cuda") throw OptionError("device is cpu or cuda, not " + device);
  if constexpr (cuda::kBuilt) {
    if (!torch_cuda().error.empty()) {
      throw OptionError("device cuda: this torch has no CUDA (" + torch_cuda().error + ")");
    }
    if (!at::hasCUDA()) throw OptionError("device cuda: torch finds no GPU on this machine");
  } else {
    throw OptionError(
        "device cuda: this build has no code for GPUs; where nvcc is, build it next to a "
        "torch with "
        "CUDA: pip install . --no-build-isolation "
        "--config-settings=cmake.define.TRACEAP_CUDA=ON");
  }
}

std::string text_of(at::IntArrayRef shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

/// What `part` makes of each group, [count, length, width], one behind the other.
template <typename Part>
Tensor each_group(const Tensor& x, std::span<const SequenceGroup> groups, const Part& part) {
  std::vector<Tensor> parts;
  std::int64_t row = 0;
  for (const SequenceGroup& group : groups) {
    const std::int64_t rows = group.count * group.length;
    parts.push_back(part(x.narrow(0, row, rows).view({group.count, group.length, x.size(1)})));
    row += rows;
  }
  return at::cat(parts);
}

/// [rows, heads * size] of `groups.count` sequences to [count, heads, length, size].
Tensor split_heads(const Tensor& x, std::int64_t count, std::int64_t heads) {
  return x.view({count, x.size(0) / count, heads, x.size(1) / heads}).transpose(1, 2);
}

}  // namespace

Weights::Weights(std::span<const WeightArray> arrays, Precision encoder, const std::string& device)
    : encoder_type_(encoder == Precision::kBfloat16 ? at::kBFloat16 : at::kFloat) {
  check_device(device);
  for (const WeightArray& array : arrays) {
    // from_blob borrows and does not write.
    Tensor tensor = at::from_blob(const_cast<float*>(array.data), array.shape, at::kFloat).clone();
    if (!at::isfinite(tensor).all().item<bool>()) {
      throw SchemaError("weights: " + array.name + " has values that are not finite");
    }
    tensor = tensor.to(at::Device(device));
    if (!arrays_.emplace(array.name, std::move(tensor)).second) {
      throw SchemaError("weights: " + array.name + " is there twice");
    }
  }
}

Tensor Weights::get(const std::string& name, at::IntArrayRef shape) const {
  const auto found = arrays_.find(name);
  if (found == arrays_.end()) throw SchemaError("weights: " + name + " is missing");
  if (found->second.sizes() != shape) {
    throw SchemaError("weights: " + name + " is " + text_of(found->second.sizes()) + ", not " +
                      text_of(shape));
  }
  return found->second;
}

Tensor Weights::get_encoder(const std::string& name, at::IntArrayRef shape) const {
  return get(name, shape).to(encoder_type_);
}

Linear::Linear(const Weights& weights, const std::string& name, std::int64_t in, std::int64_t out,
               bool encoder)
    : weight(encoder ? weights.get_encoder(name + ".weight", {out, in})
                     : weights.get(name + ".weight", {out, in})),
      bias(encoder ? weights.get_encoder(name + ".bias", {out})
                   : weights.get(name + ".bias", {out})) {}

LayerNorm::LayerNorm(const Weights& weights, const std::string& name, std::int64_t width,
                     bool encoder)
    : weight(encoder ? weights.get_encoder(name + ".weight", {width})
                     : weights.get(name + ".weight", {width})),
      bias(encoder ? weights.get_encoder(name + ".bias", {width})
                   : weights.get(name + ".bias", {width})) {}

Convolution::Convolution(const Weights& weights, const std::string& name, std::int64_t in,
                         std::int64_t out, std::int64_t size, std::int64_t dilated)
    : weight(weights.get(name + ".weight", {out, in, size})),
      bias(weights.get(name + ".bias", {out})),
      dilation(dilated) {}

Tensor Convolution::operator()(const Tensor& x) const {
  const std::int64_t padding = dilation * (weight.size(2) / 2);
  const Tensor channels_first = x.t().unsqueeze(0);
  return at::conv1d(channels_first, weight, bias, 1, padding, dilation).squeeze(0).t();
}

Encoder::Encoder(const Weights& weights, const std::string& name, std::int64_t layers,
                 std::int64_t width, std::int64_t heads, std::int64_t feed_forward)
    : width_(width), heads_(heads) {
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string at = name + ".layers." + std::to_string(i) + ".";
    layers_.push_back({LayerNorm(weights, at + "norm1", width, true),
                       LayerNorm(weights, at + "norm2", width, true),
                       Linear(weights, at + "qkv", width, 3 * width, true),
                       Linear(weights, at + "out", width, width, true),
                       Linear(weights, at + "fc1", width, feed_forward, true),
                       Linear(weights, at + "fc2", feed_forward, width, true)});
  }
  norm_ = LayerNorm(weights, name + ".norm", width);
}

Tensor Encoder::attend(const Tensor& queries, const Tensor& keys_values,
                       std::span<const SequenceGroup> groups, bool first_only) const {
  Tensor result = at::empty_like(queries, at::MemoryFormat::Contiguous);
  std::int64_t query = 0, row = 0;
  for (const SequenceGroup& group : groups) {
    const std::int64_t rows = group.count * group.length;
    const std::int64_t asked = first_only ? group.count : rows;
    const Tensor kv = keys_values.narrow(0, row, rows);
    const Tensor found = at::scaled_dot_product_attention(
        split_heads(queries.narrow(0, query, asked), group.count, heads_),
        split_heads(kv.narrow(1, 0, width_), group.count, heads_),
        split_heads(kv.narrow(1, width_, width_), group.count, heads_));
    result.narrow(0, query, asked).copy_(found.transpose(1, 2).reshape({asked, width_}));
    query += asked;
    row += rows;
  }
  return result;
}

void Encoder::feed_forward(const Layer& layer, Tensor& x) const {
  Tensor hidden = layer.fc1(layer.norm2(x));
  at::gelu_(hidden);
  x.add_(layer.fc2(hidden));
}

Tensor Encoder::first_rows(Tensor x, std::span<const SequenceGroup> groups) const {
  if (!layers_.empty()) x = x.to(layers_.front().qkv.weight.scalar_type());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const bool last = i + 1 == layers_.size();
    const Tensor h = layer.norm1(x);
    if (!last) {
      const Tensor qkv = layer.qkv(h);
      x.add_(layer.out(
          attend(qkv.narrow(1, 0, width_), qkv.narrow(1, width_, 2 * width_), groups, false)));
    } else {
      const auto part = [&](const Tensor& rows, std::int64_t from, std::int64_t size) {
        return at::linear(rows, layer.qkv.weight.narrow(0, from, size),
                          layer.qkv.bias.narrow(0, from, size));
      };
      const Tensor q = part(networks::first_rows(h, groups), 0, width_);
      const Tensor kv = part(h, width_, 2 * width_);
      x = networks::first_rows(x, groups).add_(layer.out(attend(q, kv, groups, true)));
    }
    feed_forward(layer, x);
  }
  if (layers_.empty()) x = networks::first_rows(x, groups);
  return norm_(x.to(at::kFloat));
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t heads) {
  const Tensor found = at::scaled_dot_product_attention(
      split_heads(q, 1, heads), split_heads(k, 1, heads), split_heads(v, 1, heads));
  return found.transpose(1, 2).reshape({q.size(0), q.size(1)});
}

Tensor means(const Tensor& x, std::span<const SequenceGroup> groups) {
  return each_group(x, groups, [](const Tensor& group) { return group.mean(1); });
}

Tensor first_rows(const Tensor& x, std::span<const SequenceGroup> groups) {
  return each_group(x, groups, [](const Tensor& group) { return group.select(1, 0); });
}

Tensor shifted(const Tensor& x, std::int64_t by) {
  const std::int64_t rows = x.size(0), kept = std::max<std::int64_t>(rows - std::abs(by), 0);
  const Tensor none = at::zeros({rows - kept, x.size(1)}, x.options());
  if (by > 0) return at::cat({none, x.narrow(0, 0, kept)});
  return at::cat({x.narrow(0, rows - kept, kept), none});
}

Tensor frequencies(const Tensor& like, std::int64_t width) {
  const std::int64_t half = width / 2;
  const double step = -std::log(10000.0) / static_cast<double>(half);
  return at::exp(at::arange(half, like.options()).mul_(step));
}

Tensor sinusoids(const Tensor& values, std::int64_t width) {
  const Tensor angles = values.unsqueeze(1) * frequencies(values, width);
  return at::cat({at::sin(angles), at::cos(angles)}, 1);
}

Tensor borrow(std::span<const float> values, at::IntArrayRef shape) {
  return at::from_blob(const_cast<float*>(values.data()), shape, at::kFloat);
}

Tensor borrow(std::span<const std::int64_t> values) {
  return at::from_blob(const_cast<std::int64_t*>(values.data()),
                       {static_cast<std::int64_t>(values.size())}, at::kLong);
}

std::vector<Tensor> upload(const std::vector<Tensor>& vectors, at::Device device) {
  std::vector<std::int64_t> sizes;
  for (const Tensor& vector : vectors) sizes.push_back(vector.size(0));
  return at::cat(vectors).to(device).split_with_sizes(sizes);
}

cuda::Stream stream_of(const Tensor& x) {
  if (!x.is_cuda()) return nullptr;
  cuda::Stream stream = nullptr;
  if (torch_cuda().current_stream(x.device().index(), &stream) != 0) {
    throw Error("CUDA: torch does not tell its current stream");
  }
  return stream;
}

}  // namespace traceap::networks
