#pragma once
// A table, its tree and the few questions that the tests of this layer ask.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trace_text.hpp"
#include "traceap/tree/event_tree.hpp"

struct Built {
  traceap::EventTable table;
  traceap::EventTree tree;

  /// The nth row of that name; kNoRow if there is none.
  traceap::Row row(std::string_view name, std::size_t nth = 0) const {
    for (traceap::Row r = 0; r < table.size(); ++r) {
      if (table.name_of(r) == name && nth-- == 0) return r;
    }
    return traceap::kNoRow;
  }
  std::string name(traceap::Row r) const {
    return r == traceap::kNoRow ? "none" : std::string(table.name_of(r));
  }
  std::string parent(std::string_view child, std::size_t nth = 0) const {
    return name(tree.parent[row(child, nth)]);
  }
  std::string launch(std::string_view gpu, std::size_t nth = 0) const {
    return name(tree.launch[row(gpu, nth)]);
  }
  std::string op(std::string_view event, std::size_t nth = 0) const {
    return name(tree.op[row(event, nth)]);
  }
  traceap::Phase phase(std::string_view event, std::size_t nth = 0) const {
    return tree.phase[row(event, nth)];
  }
  traceap::GpuClass gpu_class(std::string_view event) const { return tree.gpu_class[row(event)]; }
  std::uint64_t count(std::string_view code) const { return tree.diagnostics.count(code); }
};

inline Built build(const TraceText& text, const traceap::TreeOptions& options = {}) {
  Built built{text.table(), {}};
  built.tree = traceap::build_tree(built.table, options);
  return built;
}
