#pragma once
// The folder of real traces that some tests want.

#include <cstdio>
#include <cstdlib>
#include <filesystem>

/// TORCHTRACEAP_CORPUS, else ../shared/traces beside the checkout. Where there is no such folder,
/// the whole test program ends as skipped, by the exit code that CMakeLists.txt tells to ctest:
/// Catch2 before 3.3 has no SKIP.
inline std::filesystem::path corpus_folder() {
  constexpr int kSkipped = 4;
  const char* given = std::getenv("TORCHTRACEAP_CORPUS");
  const std::filesystem::path checkout = TRACEAP_SOURCE_DIR;
  const std::filesystem::path folder = given ? given : checkout / "../shared/traces";
  if (std::filesystem::is_directory(folder)) return folder;
  std::printf("skipped: no traces in %s (set TORCHTRACEAP_CORPUS)\n", folder.c_str());
  std::exit(kSkipped);
}
