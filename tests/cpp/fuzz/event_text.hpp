#pragma once
// The text of a trace taken apart into events and fields, as far as it can be, so that a mutation
// leaves most of it whole. Knows less than the reader on purpose: what is damaged stays as it is.

#include <string>
#include <string_view>
#include <vector>

namespace traceap::fuzz {

/// A member of an object: the key without its quotes, and the text of its value.
struct Field {
  std::string key, value;
};

struct Event {
  std::vector<Field> fields;  ///< all but `args`
  std::vector<Field> args;
  std::string damaged;  ///< the whole text, where it is no object of fields

  Field* find(std::string_view key);
};

struct TraceParts {
  std::string head;  ///< up to the '[' of the events, with it
  std::vector<Event> events;
  std::string tail;  ///< from what stands behind the last event
};

/// Without events where the text shows none.
TraceParts take_apart(std::string_view text);
std::string put_together(const TraceParts& parts);
/// An event by the text of its object.
Event read_event(std::string_view object);

}  // namespace traceap::fuzz
