#include "traceap/model/networks/paper.hpp"

#include <algorithm>
#include <numeric>

#include "traceap/base/error.hpp"
#include "traceap/cuda/kernels.hpp"
#include "traceap/features/quantize.hpp"
#include "traceap/features/tokens.hpp"
#include "traceap/model/networks/layers.hpp"

namespace traceap {

using namespace networks;

namespace {

/// Rows that pass the encoder at once. On the CPU they are few enough for the caches and enough for
/// matrix products; on a GPU a chunk costs some hundred launches, whatever its size.
constexpr std::int64_t kChunkRows = 4096, kDeviceChunkRows = 65'536;
constexpr std::int64_t kDelayCodes = kNoDelayCode + 1;
constexpr std::int64_t kDurationCodes = kDurationRange.levels;
constexpr std::int64_t kNeckKernel = 3;
constexpr std::int64_t kRelationKernel = 3;

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

/// Windows in the order in which the encoder reads them: by length, so that those of one length
/// share a call.
struct Packing {
  std::vector<std::int64_t> order;                 ///< [windows]
  std::vector<std::int64_t> rows;                  ///< of each window CLS, then its tokens
  std::vector<std::vector<SequenceGroup>> chunks;  ///< what passes the encoder at once
};

/// CLS is the row behind the last token. A window longer than `chunk_rows` is a chunk of its own.
Packing pack_windows(std::span<const std::int64_t> offsets, std::int64_t chunk_rows) {
  Packing packing;
  packing.order.resize(offsets.size() - 1);
  std::iota(packing.order.begin(), packing.order.end(), std::int64_t{0});
  const auto length = [&](std::int64_t w) {
    return 1 + offsets[static_cast<std::size_t>(w) + 1] - offsets[static_cast<std::size_t>(w)];
  };
  std::stable_sort(packing.order.begin(), packing.order.end(),
                   [&](std::int64_t a, std::int64_t b) { return length(a) < length(b); });
  std::int64_t free_rows = 0;
  for (const std::int64_t w : packing.order) {
    if (packing.chunks.empty() || length(w) > free_rows) {
      packing.chunks.emplace_back();
      free_rows = chunk_rows;
    }
    free_rows -= length(w);
    std::vector<SequenceGroup>& groups = packing.chunks.back();
    if (groups.empty() || groups.back().length != length(w)) groups.push_back({0, length(w)});
    ++groups.back().count;
    packing.rows.push_back(offsets.back());
    packing.rows.resize(packing.rows.size() + static_cast<std::size_t>(length(w)) - 1);
    std::iota(packing.rows.end() - (length(w) - 1), packing.rows.end(),
              offsets[static_cast<std::size_t>(w)]);
  }
  return packing;
}

/// A batch on the device of the network.
struct Inputs {
  Tensor names, position, stream;
  Tensor name, cpu_name, delay_code, duration_code;
  Tensor starts, ends;  ///< first and last token of each window that has any
  Tensor rows, order;   ///< of Packing
};

/// Copies everything before any work begins, so that the device does not wait for the host later.
Inputs upload_batch(const PaperBatch& batch, const Packing& packing, std::int64_t text_width,
                    at::Device device) {
  std::vector<std::int64_t> starts, ends;
  for (std::size_t w = 0; w + 1 < batch.offsets.size(); ++w) {
    if (batch.offsets[w] == batch.offsets[w + 1]) continue;
    starts.push_back(batch.offsets[w]);
    ends.push_back(batch.offsets[w + 1] - 1);
  }
  const auto vector = [](std::span<const float> values) {
    return borrow(values, {static_cast<std::int64_t>(values.size())});
  };
  const std::vector<Tensor> floats =
      upload({vector(batch.names), vector(batch.position), vector(batch.stream)}, device);
  const std::vector<Tensor> integers =
      upload({borrow(batch.name), borrow(batch.cpu_name), borrow(batch.delay_code),
              borrow(batch.duration_code), borrow(starts), borrow(ends), borrow(packing.rows),
              borrow(packing.order)},
             device);
  return {floats[0].view({-1, text_width}),
          floats[1],
          floats[2],
          integers[0],
          integers[1],
          integers[2],
          integers[3],
          integers[4],
          integers[5],
          integers[6],
          integers[7]};
}

}  // namespace

struct PaperNet::Impl {
  Impl(const PaperConfig& options, const Weights& weights);

  void check_batch(const PaperBatch& batch) const;
  std::vector<float> score(const PaperBatch& batch) const;
  Tensor tokens(const Inputs& inputs) const;
  Tensor windows(const Inputs& inputs, const Packing& packing) const;
  Tensor meet_platform(const Tensor& windows, std::int64_t platform) const;
  Tensor relate(const Tensor& windows) const;
  Tensor neck(const Tensor& x, const Inputs& inputs) const;
  Tensor name_table(const Tensor& names, const Linear& adapter, std::int64_t block) const;
  Tensor code_table(const Weights& weights, const std::string& name, std::int64_t codes,
                    std::int64_t block) const;

  PaperConfig config;
  std::int64_t wide;  ///< 2d
  Linear name_adapter, cpu_adapter;
  Tensor projection;
  Tensor neck1, neck2;
  Tensor delays, durations;  ///< Note [Tables]
  Tensor place_frequencies;
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
  neck1 = w.get("neck1.weight", {wide, 4 * d, 1}).squeeze(2);
  delays = code_table(w, "delay", kDelayCodes, 2);
  durations = code_table(w, "duration", kDurationCodes, 3);
  neck2 = w.get("neck2.weight", {wide, wide, kNeckKernel});
  neck2 = neck2.permute({0, 2, 1}).reshape({wide, kNeckKernel * wide});  // by offset, then channel
  neck_norm1 = LayerNorm(w, "neck_norm1", wide);
  neck_norm2 = LayerNorm(w, "neck_norm2", wide);
  cls = w.get("cls", {wide});
  place_frequencies = frequencies(cls, d);
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

/// [codes, 2d]: the same of a code, from the weights of the network alone.
Tensor PaperNet::Impl::code_table(const Weights& w, const std::string& name, std::int64_t codes,
                                  std::int64_t block) const {
  const std::int64_t d = config.width;
  const Tensor table = w.get(name + "_table.weight", {codes, d});
  const LayerNorm norm(w, name + "_norm", d);
  const Linear fc(w, name + "_fc", d, d);
  return at::matmul(at::relu(fc(norm(table))), neck1.narrow(1, block * d, d).t());
}

/// [tokens, 2d], with their place in time and among the streams.
Tensor PaperNet::Impl::tokens(const Inputs& inputs) const {
  const Tensor names = name_table(inputs.names, name_adapter, 0);
  const Tensor cpu_names = name_table(inputs.names, cpu_adapter, 1);
  Tensor x = at::empty({inputs.name.size(0), wide}, names.options());
  const cuda::Kernels kernels = cuda::kernels_for(x.is_cuda());
  kernels.gather_tokens(
      {memory_of<const std::int64_t>(inputs.name), memory_of<const std::int64_t>(inputs.cpu_name),
       memory_of<const std::int64_t>(inputs.delay_code),
       memory_of<const std::int64_t>(inputs.duration_code)},
      {memory_of<const float>(names), memory_of<const float>(cpu_names),
       memory_of<const float>(delays), memory_of<const float>(durations)},
      memory_of<float>(x), stream_of(x));
  x = neck(x, inputs);
  kernels.add_places(
      {memory_of<const float>(inputs.position), memory_of<const float>(inputs.stream)},
      memory_of<const float>(place_frequencies), memory_of<float>(x), stream_of(x));
  return x;
}

/// The rest of the neck: a convolution along the events of each window, zeros beyond its ends.
Tensor PaperNet::Impl::neck(const Tensor& x, const Inputs& inputs) const {
  const Tensor normed = neck_norm1(x);
  const Tensor before = shifted(normed, 1).index_fill_(0, inputs.starts, 0);
  const Tensor after = shifted(normed, -1).index_fill_(0, inputs.ends, 0);
  return neck_norm2(at::matmul(at::cat({before, normed, after}, 1), neck2.t()));
}

/// [windows, 2d].
Tensor PaperNet::Impl::windows(const Inputs& inputs, const Packing& packing) const {
  const Tensor source = at::cat({tokens(inputs), cls.unsqueeze(0)});
  std::vector<Tensor> parts;
  std::int64_t row = 0;
  for (const std::vector<SequenceGroup>& groups : packing.chunks) {
    std::int64_t rows = 0;
    for (const SequenceGroup& group : groups) rows += group.count * group.length;
    const Tensor x = source.index_select(0, inputs.rows.narrow(0, row, rows));
    parts.push_back(config.transformer ? encoder.first_rows(x, groups) : means(x, groups));
    row += rows;
  }
  const Tensor sorted = at::cat(parts);
  return at::empty_like(sorted).index_copy_(0, inputs.order, sorted);
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

std::vector<float> PaperNet::Impl::score(const PaperBatch& batch) const {
  const at::Device device = cls.device();
  const c10::DeviceGuard current(device);
  const Packing packing =
      pack_windows(batch.offsets, device.is_cuda() ? kDeviceChunkRows : kChunkRows);
  const Tensor encoded = windows(upload_batch(batch, packing, config.text_width, device), packing);
  std::vector<Tensor> parts;
  for (std::size_t t = 0; t < batch.platform.size(); ++t) {
    const std::int64_t count = batch.trace_offsets[t + 1] - batch.trace_offsets[t];
    if (count == 0) continue;
    Tensor x = meet_platform(encoded.narrow(0, batch.trace_offsets[t], count), batch.platform[t]);
    if (config.relation) x = relate(x);
    parts.push_back(x);
  }
  const Tensor hidden = at::relu(head1(at::cat(parts)));
  const Tensor scores = at::sigmoid(head2(hidden)).cpu().contiguous();
  return {scores.data_ptr<float>(), scores.data_ptr<float>() + scores.numel()};
}

PaperNet::PaperNet(const PaperConfig& config, std::span<const WeightArray> weights,
                   Precision precision, const std::string& device)
    : impl_(std::make_unique<Impl>(config, Weights(weights, precision, device))) {}
PaperNet::~PaperNet() = default;
PaperNet::PaperNet(PaperNet&&) noexcept = default;

std::vector<float> PaperNet::score(const PaperBatch& batch) const {
  impl_->check_batch(batch);
  if (batch.offsets.size() < 2) return {};
  return infer([&] { return impl_->score(batch); });
}

}  // namespace traceap
