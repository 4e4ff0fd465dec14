#include "traceap/model/networks/v2.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "traceap/base/error.hpp"
#include "traceap/model/networks/layers.hpp"

namespace traceap {

using namespace networks;

namespace {

constexpr std::array<std::int64_t, 3> kGrids = {50, 100, 200};
constexpr double kClip = 5.0;           // standard deviations of features
constexpr double kLargestToken = 30.0;  // logits of tokens, before exp
constexpr double kLeastWeight = 1e-6;   // of the tokens of a window without any
constexpr std::int64_t kKernel = 3;     // of both convolutions

/// One thread for what follows: matrices of a hundred rows are done before a second one has begun,
/// and where the machine is busy the first waits for it at every operator.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

void check(bool holds, const char* what) {
  if (!holds) throw SchemaError(std::string("v2: ") + what);
}
void check_indices(std::span<const std::int64_t> indices, std::int64_t count, const char* what) {
  check(std::all_of(indices.begin(), indices.end(),
                    [&](std::int64_t i) { return i >= 0 && i < count; }),
        what);
}

/// The scale embedding: of the grid that is nearest.
std::int64_t grid_of(std::int64_t windows) {
  const auto further = [&](std::int64_t a, std::int64_t b) {
    return std::abs(a - windows) < std::abs(b - windows);
  };
  return std::min_element(kGrids.begin(), kGrids.end(), further) - kGrids.begin();
}

std::vector<float> values_of(const Tensor& tensor) {
  const Tensor flat = tensor.cpu().contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

struct Mlp {
  LayerNorm norm;
  Linear up, down;
  Mlp() = default;
  Mlp(const Weights& w, const std::string& name, std::int64_t width)
      : norm(w, name + "mlp_norm", width),
        up(w, name + "up", width, 2 * width),
        down(w, name + "down", 2 * width, width) {}
  Tensor operator()(const Tensor& x) const { return down(at::gelu(up(norm(x)))); }
};

struct TokenLayer {
  std::int64_t dilation;
  LayerNorm norm;
  Linear mix;
  Mlp mlp;
  TokenLayer(const Weights& w, const std::string& name, std::int64_t width, std::int64_t dilated)
      : dilation(dilated),
        norm(w, name + "norm", width),
        mix(w, name + "mix", kKernel * width, width),
        mlp(w, name, width) {}
  Tensor operator()(const Tensor& x) const {
    const Tensor n = norm(x);
    const Tensor near = at::cat({shifted(n, dilation), n, shifted(n, -dilation)}, 1);
    const Tensor mixed = x + at::gelu(mix(near));
    return mixed + mlp(mixed);
  }
};

struct WindowLayer {
  LayerNorm conv_norm, attention_norm;
  Convolution conv;
  Linear qkv, out;
  Tensor bias;
  Mlp mlp;
  std::int64_t heads, reach;
  WindowLayer(const Weights& w, const std::string& name, const V2Shape& shape,
              std::int64_t dilation)
      : conv_norm(w, name + "conv_norm", shape.width),
        attention_norm(w, name + "attention_norm", shape.width),
        conv(w, name + "conv", shape.width, shape.width, kKernel, dilation),
        qkv(w, name + "qkv", shape.width, 3 * shape.width),
        out(w, name + "out", shape.width, shape.width),
        bias(w.get(name + "bias", {shape.heads, 2 * shape.reach + 1})),
        mlp(w, name, shape.width),
        heads(shape.heads),
        reach(shape.reach) {}

  /// The first row of `x` is the trace's token: no window, so the convolution leaves it out.
  Tensor operator()(const Tensor& x) const {
    const std::int64_t windows = x.size(0) - 1;
    const Tensor near = at::gelu(conv(conv_norm(x.narrow(0, 1, windows))));
    const Tensor convolved = x + at::constant_pad_nd(near, {0, 0, 1, 0});
    const Tensor attended = convolved + attend(attention_norm(convolved));
    return attended + mlp(attended);
  }

  Tensor attend(const Tensor& x) const {
    const std::int64_t length = x.size(0), size = x.size(1) / heads;
    const Tensor parts = qkv(x).view({length, 3, heads, size}).permute({1, 2, 0, 3});
    const Tensor query = parts.select(0, 0), key = parts.select(0, 1), value = parts.select(0, 2);
    const Tensor alike = query.matmul(key.transpose(1, 2)) / std::sqrt(static_cast<double>(size));
    const Tensor weights = at::softmax(alike + relative_bias(length), -1);
    return out(weights.matmul(value).transpose(0, 1).reshape({length, heads * size}));
  }

  Tensor relative_bias(std::int64_t length) const {
    const Tensor place = at::arange(length - 1, bias.options().dtype(at::kLong));
    const Tensor distance = (place.unsqueeze(1) - place.unsqueeze(0)).clamp(-reach, reach) + reach;
    const Tensor inner = bias.index_select(1, distance.flatten());
    return at::constant_pad_nd(inner.view({heads, length - 1, length - 1}), {1, 0, 1, 0});
  }
};

struct Tokens {
  std::vector<Tensor> codes;
  Linear numbers;
  Tensor name, cpu_name;
  std::vector<TokenLayer> layers;
  LayerNorm norm;
  Linear attention, value, own, logit;
  Tensor context;
  std::int64_t heads = 0;

  Tokens() = default;
  Tokens(const Weights& w, const V2Shape& s)
      : numbers(w, "tokens.numbers", s.token_numbers, s.token_width),
        name(w.get("tokens.name.weight", {s.token_width, s.name_width})),
        cpu_name(w.get("tokens.cpu_name.weight", {s.token_width, s.name_width})),
        norm(w, "tokens.norm", s.token_width),
        attention(w, "tokens.attention", s.token_width, s.heads),
        value(w, "tokens.value", s.token_width, s.width),
        own(w, "tokens.own", s.token_width, s.token_width),
        logit(w, "tokens.logit", s.token_width, 1),
        context(w.get("tokens.context.weight", {s.token_width, s.width})),
        heads(s.heads) {
    for (std::size_t i = 0; i < s.token_codes.size(); ++i) {
      const std::string table = "tokens.codes." + std::to_string(i) + ".weight";
      codes.push_back(w.get(table, {s.token_codes[i], s.token_width}));
    }
    for (std::int64_t i = 0; i < s.token_layers; ++i) {
      layers.emplace_back(w, "tokens.layers." + std::to_string(i) + ".", s.token_width,
                          std::int64_t{1} << i);
    }
  }

  Tensor encode(const V2Trace& trace) const {
    const auto count = static_cast<std::int64_t>(trace.window.size());
    const auto code_count = static_cast<std::int64_t>(codes.size());
    const Tensor vectors = on_device(borrow(
        trace.names, {static_cast<std::int64_t>(trace.names.size()) / name.size(1), name.size(1)}));
    Tensor x = numbers(on_device(borrow(trace.numbers, {count, numbers.weight.size(1)})));
    // Once per distinct name: a trace has a few hundred of them.
    x = x + at::linear(vectors, name).index_select(0, on_device(borrow(trace.name)));
    x = x + at::linear(vectors, cpu_name).index_select(0, on_device(borrow(trace.cpu_name)));
    const Tensor code = on_device(borrow(trace.codes)).view({count, code_count});
    for (std::int64_t i = 0; i < code_count; ++i) {
      x = x + codes[static_cast<std::size_t>(i)].index_select(0, code.select(1, i));
    }
    for (const TokenLayer& layer : layers) x = layer(x);
    return norm(x);
  }

  /// [windows, width]: for each head the mean of its part, weighted by attention.
  Tensor pool(const Tensor& x, const Tensor& window, std::int64_t windows) const {
    const Tensor weights = attention(x).clamp_max(kLargestToken).exp();
    const std::int64_t width = value.weight.size(0);
    const Tensor total = at::zeros({windows, heads}, x.options()).index_add(0, window, weights);
    const Tensor split = value(x).view({x.size(0), heads, width / heads}) * weights.unsqueeze(2);
    const Tensor summed =
        at::zeros({windows, heads, split.size(2)}, x.options()).index_add(0, window, split);
    return (summed / (total.unsqueeze(2) + kLeastWeight)).flatten(1);
  }

  Tensor logits(const Tensor& x, const Tensor& windows, const Tensor& window) const {
    const Tensor mixed = at::gelu(own(x) + at::linear(windows, context).index_select(0, window));
    return logit(mixed).squeeze(1).clamp_max(kLargestToken);
  }

  Tensor on_device(const Tensor& tensor) const { return tensor.to(name.device()); }
};

}  // namespace

struct V2Net::Impl {
  Impl(const V2Shape& s, const Weights& w)
      : shape(s),
        mean(w.get("feature_mean", {s.features})),
        scale(w.get("feature_scale", {s.features})),
        stem(w, "stem", s.features, s.width),
        grids(w.get("scale.weight", {static_cast<std::int64_t>(kGrids.size()), s.width})),
        trace_token(w.get("trace_token", {s.width})),
        norm(w, "norm", s.width),
        any(w, "any", s.width, 1),
        types(w, "types", s.width, s.types),
        severity(w, "severity", s.width, 1),
        trace(w, "trace", s.width, 1),
        any_features(w.get("any_features.weight", {1, s.features})) {
    for (std::int64_t i = 0; i < s.layers; ++i) {
      layers.emplace_back(w, "layers." + std::to_string(i) + ".", s, std::int64_t{1} << i);
    }
    if (has_tokens()) tokens = Tokens(w, s);
  }

  bool has_tokens() const { return !shape.token_codes.empty(); }
  void check_trace(const V2Trace& trace) const;
  V2Scores score(const V2Trace& trace) const;

  V2Shape shape;
  Tensor mean, scale;
  Linear stem;
  Tensor grids, trace_token;
  std::vector<WindowLayer> layers;
  LayerNorm norm;
  Linear any, types, severity, trace;
  Tensor any_features;
  Tokens tokens;
};

void V2Net::Impl::check_trace(const V2Trace& given) const {
  const std::size_t count = given.window.size();
  const auto wanted = [&](std::size_t size, std::size_t rows, std::int64_t columns) {
    return size == rows * static_cast<std::size_t>(columns);
  };
  check(given.windows > 0, "there are no windows");
  check(wanted(given.features.size(), static_cast<std::size_t>(given.windows), shape.features),
        "features are not [windows, features]");
  if (!has_tokens()) return;
  check(wanted(given.numbers.size(), count, shape.token_numbers), "numbers of tokens don't fit");
  check(wanted(given.codes.size(), count, static_cast<std::int64_t>(shape.token_codes.size())),
        "codes of tokens don't fit");
  check(given.name.size() == count && given.cpu_name.size() == count, "names don't fit");
  const auto width = static_cast<std::size_t>(shape.name_width);
  check(given.names.size() % width == 0, "names are not [names, name_width]");
  const auto names = static_cast<std::int64_t>(given.names.size() / width);
  check_indices(given.window, given.windows, "a token is in no window");
  check_indices(given.name, names, "a token has no name");
  check_indices(given.cpu_name, names, "a token has no operator's name");
  const std::size_t columns = shape.token_codes.size();
  for (std::size_t i = 0; i < given.codes.size(); ++i) {
    check(given.codes[i] >= 0 && given.codes[i] < shape.token_codes[i % columns],
          "a code of a token is unknown");
  }
}

V2Scores V2Net::Impl::score(const V2Trace& given) const {
  const Tensor raw = borrow(given.features, {given.windows, shape.features}).to(mean.device());
  const Tensor features = ((raw - mean) / scale).clamp(-kClip, kClip);
  Tensor x = stem(features) + grids.select(0, grid_of(given.windows));
  Tensor encoded, window;
  if (has_tokens()) {
    encoded = tokens.encode(given);
    window = borrow(given.window).to(mean.device());
    x = x + tokens.pool(encoded, window, given.windows);
  }
  x = at::cat({trace_token.unsqueeze(0), x});
  for (const WindowLayer& layer : layers) x = layer(x);
  x = norm(x);
  const Tensor context = x.narrow(0, 1, given.windows);
  Tensor logit = any(context).squeeze(1) + at::linear(features, any_features).squeeze(1);
  V2Scores scores;
  if (has_tokens()) {
    const Tensor of_tokens = tokens.logits(encoded, context, window);
    const Tensor none = at::zeros({given.windows}, x.options());
    logit = logit + none.index_add(0, window, of_tokens.exp()).log1p();
    scores.tokens = values_of(of_tokens);
  }
  scores.any = values_of(logit);
  scores.types = values_of(types(context));
  scores.severity = values_of(severity(context).squeeze(1).sigmoid());
  scores.trace = trace(x.select(0, 0)).item<float>();
  return scores;
}

V2Net::V2Net(const V2Shape& shape, std::span<const WeightArray> weights, const std::string& device)
    : impl_(std::make_unique<Impl>(shape, Weights(weights, Precision::kFloat32, device))) {}
V2Net::~V2Net() = default;
V2Net::V2Net(V2Net&&) noexcept = default;

V2Scores V2Net::score(const V2Trace& trace) const {
  const OneThread alone;
  impl_->check_trace(trace);
  return infer([&] { return impl_->score(trace); });
}

}  // namespace traceap
