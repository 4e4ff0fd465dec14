#pragma once
// Mutations of traces that most of the time leave traces: of events, fields and values.

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "event_text.hpp"
#include "input.hpp"

namespace traceap::fuzz {

/// The words of a libFuzzer dictionary by the name that stands before each, such as `name="..."`.
using Words = std::map<std::string, std::vector<std::string>, std::less<>>;
Words read_words(const std::string& path);

class EventMutator {
 public:
  /// `mutate_bytes` changes a text as libFuzzer does, and makes it no longer than it is told.
  using MutateBytes = void (*)(std::string& text, std::size_t max_bytes);
  EventMutator(const Words& words, MutateBytes mutate_bytes, std::uint32_t seed)
      : words_(words), mutate_bytes_(mutate_bytes), random_(seed) {}

  /// Changes texts, events or choices in one or a few places.
  void mutate(Input& input);
  /// Events, or a whole text, of `other` in `input`.
  void cross(Input& input, const Input& other);

 private:
  void mutate_events(std::vector<Event>& events);
  void mutate_texts(Input& input);
  void mutate_field(std::vector<Event>& events, Event& event);
  void mutate_value(std::vector<Event>& events, Field& field);
  void mutate_number(std::vector<Event>& events, Field& field);
  void set_word(Event& event);
  void shift(std::vector<Event>& events);
  void repeat(std::vector<Event>& events);
  void insert_snippet(std::vector<Event>& events);
  void copy_from_other(const std::vector<Event>& events, Event& event);

  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  bool one_in(std::size_t n) { return below(n) == 0; }
  const std::string& word(std::string_view section);
  Event& any(std::vector<Event>& events) { return events[below(events.size())]; }

  const Words& words_;
  MutateBytes mutate_bytes_;
  std::minstd_rand random_;
};

}  // namespace traceap::fuzz
