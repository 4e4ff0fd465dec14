#include "traceap/model/networks/paper.hpp"

#include <algorithm>
#include <numeric>

#include "traceap/base/error.hpp"
#include "traceap/features/quantize.hpp"
#include "traceap/features/tokens.hpp"
#include "traceap/model/networks/layers.hpp"

namespace traceap {

using namespace networks;

namespace {

/// Rows that pass the encoder at once: few enough for the caches, enough for matrix products.
constexpr std::int64_t kChunkRows = 4096;
constexpr std::int64_t kDelayCodes = kNoDelayCode + 1;
constexpr std::int64_t kDurationCodes = kDurationRange.levels;
constexpr std::int64_t kNeckKernel = 3;
constexpr std::int64_t kRelationKernel = 3;

std::int64_t size_of(std::span<const std::int64_t> offsets) {
  return static_cast<std::int64_t>(offsets.size()) - 1;
}

void check(bool holds, const char* what) {
  if (!holds) throw SchemaError(std::string("paper: ") + what);
}
void check_offsets(std::span<const std::int64_t> offsets, std::size_t end, const char* what) {
  check(!offsets.empty() && offsets.front() == 0 &&
            std::is_sorted(offsets.begin(), offsets.end()) &&
            offsets.back() == static_cast<std::int64_t>(end),
        what);
}
void check_codes(std::span<const std::int64_t> codes, std::int64_t count, std::size_t size,
                 const char* what) {
  check(codes.size() == size, what);
  check(
      std::all_of(codes.begin(), codes.end(), [&](std::int64_t c) { return c >= 0 && c < count; }),
      what);
}

}  // namespace

struct PaperNet::Impl {
  Impl(const PaperConfig& options, const Weights& weights);

  Tensor tokens(const PaperBatch& batch) const;
  Tensor windows(const Tensor& tokens, std::span<const std::int64_t> offsets) const;
  Tensor meet_platform(const Tensor& windows, std::int64_t platform) const;
  Tensor relate(const Tensor& windows) const;
  Tensor neck(const Tensor& x, std::span<const std::int64_t> offsets) const;
  Tensor name_table(const Tensor& names, const Linear& adapter, std::int64_t block) const;
  Tensor code_table(const Tensor& codes, const LayerNorm& norm, const Linear& fc,
                    std::int64_t block) const;
  void check_batch(const PaperBatch& batch) const;
  Tensor on_device(const Tensor& tensor) const { return tensor.to(cls.device()); }

  PaperConfig config;
  std::int64_t wide;  ///< 2d
  Linear name_adapter, cpu_adapter;
  Tensor projection;
  Tensor delay_table, duration_table;
  LayerNorm delay_norm, duration_norm;
  Linear delay_fc, duration_fc;
  Tensor neck1, neck2;
  LayerNorm neck_norm1, neck_norm2;
  Tensor cls;
  Encoder encoder;
  Tensor platform_tokens;
  LayerNorm platform_norm;
  Linear platform_q, platform_kv, platform_out;
  Convolution near, middle, far, merge;
  Linear relation_qkv, relation_out;
  Linear head1, head2;
};

PaperNet::Impl::Impl(const PaperConfig& options, const Weights& w)
    : config(options), wide(2 * options.width) {
  const std::int64_t d = config.width;
  if (config.adapter) {
    name_adapter = Linear(w, "name_adapter", config.text_width, d);
    cpu_adapter = Linear(w, "cpu_adapter", config.text_width, d);
  } else {
    projection = w.get("projection", {config.text_width, d});
  }
  delay_table = w.get("delay_table.weight", {kDelayCodes, d});
  duration_table = w.get("duration_table.weight", {kDurationCodes, d});
  delay_norm = LayerNorm(w, "delay_norm", d);
  duration_norm = LayerNorm(w, "duration_norm", d);
  delay_fc = Linear(w, "delay_fc", d, d);
  duration_fc = Linear(w, "duration_fc", d, d);
  neck1 = w.get("neck1.weight", {wide, 4 * d, 1}).squeeze(2);
  neck2 = w.get("neck2.weight", {wide, wide, kNeckKernel});
  neck2 = neck2.permute({0, 2, 1}).reshape({wide, kNeckKernel * wide});  // by offset, then channel
  neck_norm1 = LayerNorm(w, "neck_norm1", wide);
  neck_norm2 = LayerNorm(w, "neck_norm2", wide);
  cls = w.get("cls", {wide});
  if (config.transformer) {
    encoder = Encoder(w, "encoder", config.layers, wide, config.heads, config.feed_forward);
  }
  platform_tokens = w.get("platform_tokens", {config.platforms, config.platform_tokens, wide});
  platform_norm = LayerNorm(w, "platform_norm", wide);
  platform_q = Linear(w, "platform_q", wide, wide);
  platform_kv = Linear(w, "platform_kv", wide, 2 * wide);
  platform_out = Linear(w, "platform_out", wide, wide);
  if (config.relation) {
    near = Convolution(w, "relation.near", wide, d, kRelationKernel, 1);
    middle = Convolution(w, "relation.middle", wide, d, kRelationKernel, 2);
    far = Convolution(w, "relation.far", wide, d, kRelationKernel, 4);
    relation_qkv = Linear(w, "relation.qkv", wide, 3 * d);
    relation_out = Linear(w, "relation.out", d, d);
    merge = Convolution(w, "relation.merge", 4 * d, wide, kRelationKernel, 1);
  }
  head1 = Linear(w, "head1", wide, wide);
  head2 = Linear(w, "head2", wide, 1);
}

void PaperNet::Impl::check_batch(const PaperBatch& batch) const {
  const std::size_t tokens = batch.name.size();
  check(batch.names.size() % static_cast<std::size_t>(config.text_width) == 0,
        "names are not [names, text_width]");
  const auto names = static_cast<std::int64_t>(batch.names.size()) / config.text_width;
  check_offsets(batch.offsets, tokens, "offsets don't fit the tokens");
  check_offsets(batch.trace_offsets, batch.offsets.size() - 1,
                "trace_offsets don't fit the windows");
  check_codes(batch.name, names, tokens, "name is not among the names");
  check_codes(batch.cpu_name, names, tokens, "cpu_name is not among the names");
  check_codes(batch.delay_code, kDelayCodes, tokens, "delay_code is out of range");
  check_codes(batch.duration_code, kDurationCodes, tokens, "duration_code is out of range");
  check_codes(batch.platform, config.platforms, batch.trace_offsets.size() - 1,
              "platform is out of range");
  check(batch.position.size() == tokens && batch.stream.size() == tokens,
        "position and stream don't fit the tokens");
}

// Note [Tables]: names and codes repeat, and the neck's first convolution sees one token at a time.
// So its product with each distinct name and code is taken once, and a token is the sum of four
// rows: the same numbers up to rounding.

/// [names, 2d]: the neck's part of a name, by the block of its input that the name fills.
Tensor PaperNet::Impl::name_table(const Tensor& names, const Linear& adapter,
                                  std::int64_t block) const {
  const Tensor adapted = config.adapter ? at::relu(adapter(names)) : at::matmul(names, projection);
  return at::matmul(adapted, neck1.narrow(1, block * config.width, config.width).t());
}

Tensor PaperNet::Impl::code_table(const Tensor& codes, const LayerNorm& norm, const Linear& fc,
                                  std::int64_t block) const {
  return at::matmul(at::relu(fc(norm(codes))),
                    neck1.narrow(1, block * config.width, config.width).t());
}

/// [tokens, 2d], with their place in time and among the streams.
Tensor PaperNet::Impl::tokens(const PaperBatch& batch) const {
  const auto count = static_cast<std::int64_t>(batch.name.size());
  const auto names_count = static_cast<std::int64_t>(batch.names.size()) / config.text_width;
  const Tensor names = on_device(borrow(batch.names, {names_count, config.text_width}));
  const auto rows = [&](const Tensor& table, std::span<const std::int64_t> index) {
    return table.index_select(0, on_device(borrow(index)));
  };
  Tensor x = rows(name_table(names, name_adapter, 0), batch.name);
  x.add_(rows(name_table(names, cpu_adapter, 1), batch.cpu_name));
  x.add_(rows(code_table(delay_table, delay_norm, delay_fc, 2), batch.delay_code));
  x.add_(rows(code_table(duration_table, duration_norm, duration_fc, 3), batch.duration_code));
  x = neck(x, batch.offsets);
  x.narrow(1, 0, config.width)
      .add_(sinusoids(on_device(borrow(batch.position, {count})), config.width));
  x.narrow(1, config.width, config.width)
      .add_(sinusoids(on_device(borrow(batch.stream, {count})), config.width));
  return x;
}

/// The rest of the neck: a convolution along the events of each window, zeros beyond its ends.
Tensor PaperNet::Impl::neck(const Tensor& x, std::span<const std::int64_t> offsets) const {
  const std::int64_t count = x.size(0);
  std::vector<std::int64_t> before(static_cast<std::size_t>(count)), after(before.size());
  std::iota(before.begin(), before.end(), -1);
  std::iota(after.begin(), after.end(), 1);
  for (std::int64_t w = 0; w < size_of(offsets); ++w) {
    const auto begin = static_cast<std::size_t>(offsets[static_cast<std::size_t>(w)]);
    const auto end = static_cast<std::size_t>(offsets[static_cast<std::size_t>(w) + 1]);
    if (begin == end) continue;
    before[begin] = after[end - 1] = count;  // the row of zeros
  }
  const Tensor padded = at::cat({neck_norm1(x), at::zeros({1, wide}, x.options())});
  const Tensor columns =
      at::cat({padded.index_select(0, on_device(borrow(before))), padded.narrow(0, 0, count),
               padded.index_select(0, on_device(borrow(after)))},
              1);
  return neck_norm2(at::matmul(columns, neck2.t()));
}

/// [windows, 2d]. Windows are read by length, so that those of one length share a call.
Tensor PaperNet::Impl::windows(const Tensor& tokens, std::span<const std::int64_t> offsets) const {
  const std::int64_t count = size_of(offsets);
  const auto length = [&](std::int64_t w) {
    return 1 + offsets[static_cast<std::size_t>(w) + 1] - offsets[static_cast<std::size_t>(w)];
  };
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return length(a) < length(b); });
  const Tensor source = at::cat({tokens, cls.unsqueeze(0)});
  std::vector<Tensor> parts;
  for (std::size_t next = 0; next < order.size();) {
    std::vector<std::int64_t> rows;
    std::vector<SequenceGroup> groups;
    do {
      const std::int64_t w = order[next++];
      rows.push_back(tokens.size(0));  // CLS
      for (std::int64_t t = offsets[static_cast<std::size_t>(w)];
           t < offsets[static_cast<std::size_t>(w) + 1]; ++t) {
        rows.push_back(t);
      }
      if (groups.empty() || groups.back().length != length(w)) groups.push_back({0, length(w)});
      ++groups.back().count;
    } while (next < order.size() &&
             static_cast<std::int64_t>(rows.size()) + length(order[next]) <= kChunkRows);
    const Tensor x = source.index_select(0, on_device(borrow(rows)));
    parts.push_back(config.transformer ? encoder.first_rows(x, groups) : means(x, groups));
  }
  if (parts.empty()) return at::empty({0, wide}, tokens.options());
  Tensor sorted = at::cat(parts), result = at::empty_like(sorted);
  return result.index_copy_(0, on_device(borrow(order)), sorted);
}

/// Windows ask the tokens of their trace's platform.
Tensor PaperNet::Impl::meet_platform(const Tensor& windows, std::int64_t platform) const {
  const Tensor kv = platform_kv(platform_tokens.select(0, platform));
  const Tensor found = attention(platform_q(platform_norm(windows)), kv.narrow(1, 0, wide),
                                 kv.narrow(1, wide, wide), config.heads);
  return windows + platform_out(found);
}

/// Eq. 9: windows of one trace see their neighbours at three distances, and each other.
Tensor PaperNet::Impl::relate(const Tensor& windows) const {
  const std::int64_t d = config.width;
  const Tensor x = windows + sinusoids(at::arange(windows.size(0), windows.options()), wide);
  const Tensor qkv = relation_qkv(x);
  const Tensor all = relation_out(
      attention(qkv.narrow(1, 0, d), qkv.narrow(1, d, d), qkv.narrow(1, 2 * d, d), config.heads));
  return at::relu(
      merge(at::cat({at::relu(near(x)), at::relu(middle(x)), at::relu(far(x)), all}, 1)));
}

PaperNet::PaperNet(const PaperConfig& config, std::span<const WeightArray> weights,
                   Precision precision, const std::string& device)
    : impl_(std::make_unique<Impl>(config, Weights(weights, precision, device))) {}
PaperNet::~PaperNet() = default;
PaperNet::PaperNet(PaperNet&&) noexcept = default;

std::vector<float> PaperNet::score(const PaperBatch& batch) const {
  const c10::InferenceMode no_gradients;
  impl_->check_batch(batch);
  if (batch.offsets.size() < 2) return {};
  const Tensor windows = impl_->windows(impl_->tokens(batch), batch.offsets);
  std::vector<Tensor> parts;
  for (std::size_t t = 0; t < batch.platform.size(); ++t) {
    const std::int64_t count = batch.trace_offsets[t + 1] - batch.trace_offsets[t];
    if (count == 0) continue;
    Tensor x =
        impl_->meet_platform(windows.narrow(0, batch.trace_offsets[t], count), batch.platform[t]);
    if (impl_->config.relation) x = impl_->relate(x);
    parts.push_back(x);
  }
  const Tensor hidden = at::relu(impl_->head1(at::cat(parts)));
  const Tensor scores = at::sigmoid(impl_->head2(hidden)).cpu().contiguous();
  return {scores.data_ptr<float>(), scores.data_ptr<float>() + scores.numel()};
}

}  // namespace traceap
