#include "traceap/trace/structural_index.hpp"

#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <new>

#include "traceap/base/error.hpp"

namespace traceap {

struct StructuralIndex::Parser {
  std::unique_ptr<simdjson::internal::dom_parser_implementation> stages;

  void reserve(std::size_t bytes) {
    if (bytes >= std::numeric_limits<std::uint32_t>::max()) throw Error("chunk above 4 GiB");
    if (stages && stages->capacity() >= bytes) return;
    const std::size_t capacity = std::max<std::size_t>(bytes + bytes / 4, 4096);
    const auto error = simdjson::get_active_implementation()->create_dom_parser_implementation(
        capacity, 1, stages);
    if (error != simdjson::SUCCESS) throw std::bad_alloc();
  }
};

StructuralIndex::StructuralIndex() : parser_(std::make_unique<Parser>()) {}
StructuralIndex::~StructuralIndex() = default;

bool StructuralIndex::build(std::string_view text) {
  parser_->reserve(text.size());
  const auto error = parser_->stages->stage1(reinterpret_cast<const std::uint8_t*>(text.data()),
                                             text.size(), simdjson::stage1_mode::regular);
  positions_ = parser_->stages->structural_indexes.get();
  size_ = error == simdjson::SUCCESS ? parser_->stages->n_structural_indexes : 0;
  return error == simdjson::SUCCESS || error == simdjson::EMPTY;
}

}  // namespace traceap
