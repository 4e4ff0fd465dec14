#include "traceap/detect/rules.hpp"

namespace traceap {

const std::vector<DetectorEntry>& extended_detectors() {
  static const std::vector<DetectorEntry> entries;
  return entries;
}

}  // namespace traceap
