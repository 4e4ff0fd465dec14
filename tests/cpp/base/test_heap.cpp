#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "traceap/base/heap.hpp"

using namespace traceap;

namespace {

/// The flags and sizes of the parts of the process's memory that huge pages may back.
std::size_t advised_kb() {
  std::ifstream maps("/proc/self/smaps");
  std::size_t size_kb = 0, advised = 0;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "Size:") words >> size_kb;
    if (key != "VmFlags:") continue;
    for (std::string flag; words >> flag;) advised += flag == "hg" ? size_kb : 0;
  }
  return advised;
}

bool has_huge_pages() {
  return std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good();
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnAllocator = true;  // of a sanitizer: not glibc's heap
#elif defined(__has_feature)
constexpr bool kOwnAllocator = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kOwnAllocator = false;
#endif

}  // namespace

TEST_CASE("a prepared heap has room on huge pages, and blocks lie in it", "[base]") {
  prepare_heap();
  std::vector<std::vector<char>> blocks;
  for (int i = 0; i < 100; ++i) blocks.emplace_back(100'000, 'x');
  CHECK(blocks.back().back() == 'x');
  if (kOwnAllocator || !has_huge_pages()) return;
  CHECK(advised_kb() >= 60 * 1024);
}
