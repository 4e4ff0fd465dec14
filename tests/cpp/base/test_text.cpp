#include "catch.hpp"
#include "traceap/base/text.hpp"

using namespace traceap;

TEST_CASE("words are found where they stand", "[base]") {
  CHECK(contains("cudaMemcpyAsync", "Memcpy"));
  CHECK_FALSE(contains("cudaMemcpyAsync", "memcpy"));
  CHECK(contains("anything", ""));
  CHECK_FALSE(contains("", "a"));
  CHECK(contains_any("cudaFree", {"Malloc", "Free"}));
  CHECK_FALSE(contains_any("cudaFree", {"Malloc", "free"}));
  CHECK_FALSE(contains_any("cudaFree", {}));
  CHECK(contains_any_case("MemCpy", "memcpy"));
  CHECK_FALSE(contains_any_case("Mem", "memcpy"));
  CHECK(is_any("wait", {"barrier", "wait"}));
  CHECK_FALSE(is_any("waits", {"barrier", "wait"}));
  CHECK(starts_with_any("nccl:all_reduce", {"gloo", "nccl"}));
  CHECK_FALSE(starts_with_any("ncc", {"gloo", "nccl"}));
}

TEST_CASE("lower case touches ASCII letters alone", "[base]") {
  CHECK(to_lower("AZ[`az{\xc3\x84") == "az[`az{\xc3\x84");
}
