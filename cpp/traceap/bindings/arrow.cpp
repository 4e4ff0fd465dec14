#include "traceap/bindings/arrow.hpp"

#include <array>
#include <cerrno>
#include <new>
#include <utility>

namespace traceap::bindings {
namespace {

constexpr std::int64_t kNullable = 2;  // ARROW_FLAG_NULLABLE
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Length of the valid UTF-8 sequence at text[i], or 0.
std::size_t sequence_length(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned lead = byte(i);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || i + length > text.size()) return 0;
  for (std::size_t k = i + 1; k < i + length; ++k) {
    if ((byte(k) & 0xC0) != 0x80) return 0;
  }
  const unsigned second = byte(i + 1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second >= 0xA0;
  const bool too_big = lead == 0xF4 && second >= 0x90;
  return overlong || surrogate || too_big ? 0 : length;
}

// What the structs' private_data point to. Children and dictionaries are owned by their parent's
// private data; a consumer that moves one out leaves its `release` null behind.

struct SchemaData {
  ArrowBatches batches;
  std::string name;
  std::string format;
  std::vector<ArrowSchema> children;
  std::vector<ArrowSchema*> child_pointers;
  ArrowSchema dictionary{};
};

struct ArrayData {
  ArrowBatches batches;
  std::array<const void*, 3> buffers{};
  std::vector<ArrowArray> children;
  std::vector<ArrowArray*> child_pointers;
  ArrowArray dictionary{};
};

struct StreamData {
  ArrowBatches batches;
  std::size_t next = 0;
};

template <typename Struct, typename Data>
void release(Struct* self) {
  auto* data = static_cast<Data*>(self->private_data);
  for (Struct& child : data->children) {
    if (child.release != nullptr) child.release(&child);
  }
  if (data->dictionary.release != nullptr) data->dictionary.release(&data->dictionary);
  delete data;
  self->release = nullptr;
}

/// Takes `data` over; children and dictionary are filled in by the caller afterwards.
SchemaData* init(ArrowSchema* out, const ArrowBatches& batches, std::string name,
                 std::string format) {
  auto* data = new SchemaData{batches, std::move(name), std::move(format), {}, {}, {}};
  *out = {data->format.c_str(),
          data->name.c_str(),
          nullptr,
          kNullable,
          0,
          nullptr,
          nullptr,
          release<ArrowSchema, SchemaData>,
          data};
  return data;
}

ArrayData* init(ArrowArray* out, const ArrowBatches& batches, std::int64_t length,
                std::int64_t null_count, std::int64_t buffer_count) {
  auto* data = new ArrayData{batches, {}, {}, {}, {}};
  *out = {length,       null_count, 0,
          buffer_count, 0,          data->buffers.data(),
          nullptr,      nullptr,    release<ArrowArray, ArrayData>,
          data};
  return data;
}

template <typename Struct, typename Data>
void reserve_children(Struct* out, Data* data, std::size_t count) {
  data->children.resize(count);
  for (Struct& child : data->children) {
    child.release = nullptr;  // not exported yet
    data->child_pointers.push_back(&child);
  }
  out->n_children = static_cast<std::int64_t>(count);
  out->children = data->child_pointers.data();
}

void fill_column(const ArrowBatches& batches, const ArrowColumn& column, ArrowSchema* out) {
  SchemaData* data = init(out, batches, column.name, column.format);
  if (!column.dictionary) return;
  init(&data->dictionary, batches, "", "U");
  out->dictionary = &data->dictionary;
}

void fill_column(const ArrowBatches& batches, const ArrowColumn& column, std::int64_t length,
                 ArrowArray* out) {
  ArrayData* data = init(out, batches, length, column.null_count, 2);
  data->buffers = {column.validity.empty() ? nullptr : column.validity.data(), column.values};
  if (!column.dictionary) return;
  const ArrowTexts& texts = *column.dictionary;
  ArrayData* dictionary = init(&data->dictionary, batches, texts.size(), 0, 3);
  dictionary->buffers = {nullptr, texts.offsets.data(), texts.data.data()};
  out->dictionary = &data->dictionary;
}

void fill_batch(const ArrowBatches& batches, const ArrowBatch& batch, ArrowArray* out) {
  ArrayData* data = init(out, batches, batch.length, 0, 1);
  reserve_children(out, data, batch.columns.size());
  for (std::size_t i = 0; i < batch.columns.size(); ++i) {
    fill_column(batches, batch.columns[i], batch.length, &data->children[i]);
  }
}

int get_schema(ArrowArrayStream* self, ArrowSchema* out) {
  out->release = nullptr;
  try {
    export_schema(static_cast<StreamData*>(self->private_data)->batches, out);
    return 0;
  } catch (const std::bad_alloc&) {
    if (out->release != nullptr) out->release(out);
    return ENOMEM;
  }
}

int get_next(ArrowArrayStream* self, ArrowArray* out) {
  auto* data = static_cast<StreamData*>(self->private_data);
  out->release = nullptr;  // the end of the stream
  if (data->next == data->batches->size()) return 0;
  try {
    fill_batch(data->batches, (*data->batches)[data->next], out);
    ++data->next;
    return 0;
  } catch (const std::bad_alloc&) {
    if (out->release != nullptr) out->release(out);
    return ENOMEM;
  }
}

const char* get_last_error(ArrowArrayStream*) { return "out of memory"; }

void release_stream(ArrowArrayStream* self) {
  delete static_cast<StreamData*>(self->private_data);
  self->release = nullptr;
}

}  // namespace

void ArrowTexts::add(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_length(text, i);
    data += length == 0 ? kReplacement : text.substr(i, length);
    i += length == 0 ? 1 : length;
  }
  offsets.push_back(static_cast<std::int64_t>(data.size()));
}

void export_schema(const ArrowBatches& batches, ArrowSchema* out) {
  SchemaData* data = init(out, batches, "", "+s");
  out->flags = 0;
  const auto& columns = batches->front().columns;
  reserve_children(out, data, columns.size());
  for (std::size_t i = 0; i < columns.size(); ++i) {
    fill_column(batches, columns[i], &data->children[i]);
  }
}

void export_stream(ArrowBatches batches, ArrowArrayStream* out) {
  *out = {get_schema, get_next, get_last_error, release_stream,
          new StreamData{std::move(batches), 0}};
}

}  // namespace traceap::bindings
